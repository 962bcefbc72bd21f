"""Calls about listeners, without a face."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring.access.caller import EVERY_NAMESPACE, LOCAL, Caller, Grant, Role
from mainspring.api.handlers.listeners import ListenerCalls, payloads
from mainspring.api.handlers.subscriptions import COUNTED
from mainspring.api.jobs import CancelJob
from mainspring.api.listeners import (
    DeclaredListener,
    DeclareListeners,
    ListListeners,
    PauseListener,
    RemoveListener,
    ResumeListener,
    ShowListener,
)
from mainspring.api.request import ApiError, Code
from mainspring.api.schedules import DeclareSchedules
from mainspring.callbacks import awaited
from mainspring.client.event import Event
from mainspring.engines.memory.bulk import MemoryBulkSlice
from mainspring.engines.memory.schedules import MemoryScheduleSlice
from mainspring.engines.memory.subscriptions import MemorySubscriptionSlice
from mainspring.event_log.service import EventLog
from mainspring.jobs.model import Options, Retry
from mainspring.schedules.specification import Specification
from mainspring.subscriptions.model import Target, id_of
from mainspring.subscriptions.service import Deliverer

from .a_node import Store, opened, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mainspring.api.request import Request
    from mainspring.jobs.held import Held

    from .a_node import Node

PAY = Caller("pay", (Grant(Role.DEVELOPER, functions=("pay*", "tell_pay")),))
DEVELOPER = Caller("developer", (Grant(Role.DEVELOPER),))
ADMIN = Caller("admin", (Grant(Role.ADMIN),))
ROOT = Caller("root", (Grant(Role.ADMIN, EVERY_NAMESPACE),))


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Node, Deliverer]]:
    store = Store([MemoryBulkSlice(), MemoryScheduleSlice(), MemorySubscriptionSlice()])
    async with opened(store) as node:
        log = EventLog(
            node.commits,
            node.reads,
            node.clock,
            store.interests,
            lambda function: function(),
            first=None,
            retention=3600.0,
            most=COUNTED * 10,
        )
        deliverer = Deliverer(
            node.commits,
            node.reads,
            node.clock,
            log,
            payloads(node.service.handles),
            first=None,
            paused=lambda: False,
        )
        log.subscribe_own(deliverer.look)
        node.api.add(ListenerCalls(deliverer, node.reads, node.schedules.deploy).handlers)
        yield node, deliverer


def one(name: str = "tell", *types: str, **values: Any) -> DeclaredListener:
    return DeclaredListener(name=name, types=list(types or ("job.cancelled",)), **values)


def declares(*listeners: DeclaredListener, app: str = "shop", **more: Any) -> DeclareListeners:
    functions = more.pop("functions", [each.name for each in listeners])
    return DeclareListeners(app=app, listeners=list(listeners), functions=functions, **more)


async def declare(
    node: Node, *listeners: DeclaredListener, caller: Caller = LOCAL, **more: Any
) -> list[tuple[str, str]]:
    answer = await node.api.call(declares(*listeners, **more), caller=caller)
    assert answer.governs
    return [(change.kind, change.name) for change in answer.changes]


async def names(node: Node, **more: Any) -> list[str]:
    return [each.name for each in (await node.api.call(ListListeners(**more))).items]


async def cancel(node: Node, *functions: bytes) -> list[str]:
    """Cancel a job of each function, and wait until the deliveries of that are stored."""
    handles = [await node.submit(function) for function in functions]
    for handle in handles:
        await node.api.call(CancelJob(handle))
    for _ in range(3):
        await node.committed()
    return handles


async def deliveries(node: Node, function: bytes = b"tell") -> list[Held]:
    """Return the deliveries that a new worker is given."""
    side = node.worker(function, places=3)
    for _ in range(3):
        await node.committed()
    return side.given


def test_code_adds_changes_and_removes_its_listeners() -> None:
    async def test() -> None:
        async with listening() as (node, _):
            assert await declare(node, one(), one("second")) == [("added", "tell"), ("added", "second")]
            assert await declare(node, one("second"), one()) == []
            assert await declare(node, one(tags=("x",))) == [("changed", "tell"), ("removed", "second")]
            shown = await node.api.call(ShowListener("tell"))
            assert (shown.types, shown.tags, shown.app, shown.state) == (["job.cancelled"], ["x"], "shop", "active")
            assert await names(node) == ["tell"]

    run(test())


def test_each_event_is_a_job_with_the_event_as_its_argument() -> None:
    async def test() -> None:
        async with listening() as (node, _):
            retry = Retry(max_attempts=3)
            await declare(node, one(functions=("pay*",), retry=retry, timeout=5.0, priority="high", job_tags=("a",)))
            handle, _ = await cancel(node, b"pay_rent", b"f")
            (held,) = await deliveries(node)
            (event,) = msgspec.json.decode(held.job.payload, type=list[Event])
            assert (event.type, event.function, event.job, event.namespace) == (
                "job.cancelled",
                "pay_rent",
                handle,
                "default",
            )
            assert event.time is not None
            assert held.job.priority == 0
            assert held.job.options is not None
            assert msgspec.structs.replace(held.job.options, owner=None) == Options(retry, 5.0, depth=1, tags=("a",))

    run(test())


def test_a_paused_listener_gets_its_events_later() -> None:
    async def test() -> None:
        async with listening() as (node, _):
            await declare(node, one())
            assert (await node.api.call(PauseListener("tell", reason="not now"))).paused == "not now"
            await cancel(node, b"f", b"g")
            shown = await node.api.call(ShowListener("tell"))
            assert (shown.state, shown.behind, shown.delivered) == ("paused", 2, "0")
            assert await declare(node, one()) == [], "code does not resume it"
            await node.api.call(ResumeListener("tell"))
            for _ in range(3):
                await node.committed()
            shown = await node.api.call(ShowListener("tell"))
            assert (shown.state, shown.behind, shown.delivered) == ("active", 0, "2")
            assert len(await deliveries(node)) == 2

    run(test())


def test_a_removed_listener_gets_nothing() -> None:
    async def test() -> None:
        async with listening() as (node, _):
            await declare(node, one())
            await node.api.call(RemoveListener("tell"))
            await cancel(node, b"f")
            assert await deliveries(node) == []
            for request in (
                ShowListener("tell"),
                RemoveListener("tell"),
                PauseListener("tell"),
                ResumeListener("tell"),
            ):
                assert await node.code(request) is Code.LISTENER_NOT_FOUND
            await declare(node, one())
            assert await deliveries(node) == [], "it gets the events from then on"

    run(test())


def test_lists_have_pages_and_namespaces() -> None:
    async def test() -> None:
        async with listening() as (node, _):
            await declare(node, one("a"), one("b"), one("c"))
            await declare(node, one("d"), namespace="team")
            page = await node.api.call(ListListeners(limit=2))
            assert [each.name for each in page.items] == ["a", "b"]
            assert await names(node, limit=2, cursor=page.next) == ["c"]
            assert await names(node, namespace="team") == ["d"]

    run(test())


def test_the_newest_code_that_runs_counts() -> None:
    async def test() -> None:
        async with listening() as (node, _):
            old, new = declares(one("a")), declares(one("b"))
            await node.api.call(old)
            node.clock.advance(1)
            assert [change.kind for change in (await node.api.call(new)).changes] == ["added", "removed"]
            for _ in range(5):
                node.clock.advance(20)
                assert not (await node.api.call(old)).governs
                assert (await node.api.call(new)).changes == []
            assert await names(node) == ["b"]
            node.clock.advance(61)  # the new code ends: a rollback
            assert [change.kind for change in (await node.api.call(old)).changes] == ["added", "removed"]
            assert await names(node) == ["a"]

    run(test())


def test_schedules_and_listeners_of_an_app_have_versions_of_their_own() -> None:
    async def test() -> None:
        async with listening() as (node, _):
            schedules = DeclareSchedules("shop", [Specification(name="s", function="f", every=60.0)])
            await declare(node, one())
            node.clock.advance(1)
            assert (await node.api.call(schedules)).governs
            assert (await node.api.call(declares(one()))).governs

    run(test())


def test_two_apps_do_not_take_each_others_listeners() -> None:
    async def test() -> None:
        async with listening() as (node, _):
            await declare(node, one())
            assert await declare(node, one(), app="other") == [("left alone", "tell")]
            node.clock.advance(61)
            assert await declare(node, one(), app="other") == [("adopted", "tell")]
            assert (await node.api.call(ShowListener("tell"))).app == "other"

    run(test())


def test_files_of_one_name_do_not_remove_each_others_listeners() -> None:
    async def test() -> None:
        async with listening() as (node, _):
            await declare(node, one(), app="app", is_named=False)
            changes = await declare(node, one("else"), app="app", is_named=False)
            assert changes == [("left alone", "app (2)"), ("added", "else")]
            assert await declare(node, one("else"), app="app", is_named=False) == [("left alone", "app (2)")]
            assert await names(node) == ["else", "tell"]

    run(test())


@pytest.mark.parametrize(
    ("listener", "why"),
    [
        (one("tell", "job.lost"), "names no type of event"),
        (one(functions=("tell",)), "its own function"),
        (one(timeout=0.0), "timeout is 0"),
        (one(retry=Retry(max_attempts=0)), "max_attempts"),
        (one(tags=("",)), "is not a tag"),
        (one("x\x1fy"), "U\\+001F"),
        (one(""), "needs the name"),
    ],
)
def test_wrong_listeners_are_refused(listener: DeclaredListener, why: str) -> None:
    async def test() -> None:
        async with listening() as (node, _):
            with pytest.raises(ApiError, match=why) as caught:
                await node.api.call(declares(listener))
            assert caught.value.problem.code is Code.INVALID
            assert await names(node) == []

    run(test())


@pytest.mark.parametrize(
    ("listener", "caller", "permitted"),
    [
        (one("tell_pay", functions=("pay",)), PAY, True),
        (one("tell_pay", functions=("pay_*", "pay")), PAY, True),
        (one("tell_pay", functions=("pa*",)), PAY, False),
        (one("tell_pay", functions=("pay", "mail")), PAY, False),
        (one("tell_pay"), PAY, False),
        (one("tell", functions=("pay",)), PAY, False),
        (one(), DEVELOPER, True),
        (one("tell", "operator.acted"), DEVELOPER, False),
        (one("tell", "*"), DEVELOPER, False),
        (one("tell", "operator.acted"), ADMIN, True),
        (one(everywhere=True), ADMIN, False),
        (one("tell", "*", everywhere=True), ROOT, True),
        (one("tell_pay", "operator.acted", functions=("pay",)), PAY, False),
    ],
)
def test_a_caller_sees_all_events_of_its_listeners(listener: DeclaredListener, caller: Caller, permitted: bool) -> None:
    async def test() -> None:
        async with listening() as (node, _):
            if permitted:
                assert await declare(node, listener, caller=caller) == [("added", listener.name)]
                return
            with pytest.raises(ApiError) as caught:
                await node.api.call(declares(listener), caller=caller)
            assert caught.value.problem.code is Code.FORBIDDEN
            assert await names(node) == []

    run(test())


def test_a_caller_with_some_functions_neither_sees_nor_changes_other_listeners() -> None:
    async def test() -> None:
        async with listening() as (node, _):
            await declare(node, one(), one("pay_tell"))
            listed = await node.api.call(ListListeners(), caller=PAY)
            assert [each.name for each in listed.items] == ["pay_tell"]
            requests: list[Request[Any]] = [
                ShowListener("tell"),
                PauseListener("tell"),
                ResumeListener("tell"),
                RemoveListener("tell"),
                declares(app="shop"),
            ]
            for request in requests:
                with pytest.raises(ApiError) as caught:
                    await node.api.call(request, caller=PAY)
                assert caught.value.problem.code is Code.FORBIDDEN
            assert await names(node) == ["pay_tell", "tell"]

    run(test())


def test_changes_have_acts() -> None:
    async def test() -> None:
        async with listening() as (node, _):
            await declare(node, one())
            await node.api.call(PauseListener("tell", reason="not now"))
            await node.api.call(ResumeListener("tell"))
            await node.api.call(RemoveListener("tell"))
            acts = [each.act for each in node.store.tables.acts]
            assert [(act.what, act.object, act.reason) for act in acts] == [
                ("listeners.declare", "tell", ""),
                ("listeners.pause", "tell", "not now"),
                ("listeners.resume", "tell", ""),
                ("listeners.remove", "tell", ""),
            ]

    run(test())


def test_many_listeners_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with listening() as (node, _):
            monkeypatch.setattr("mainspring.api.handlers.listeners.MOST_LISTENERS", 2)
            assert await node.code(declares(one("a"), one("b"), one("c"))) is Code.CONFLICT
            await declare(node, one("a"), one("b"))

    run(test())


def test_a_missed_stretch_of_the_log_is_shown() -> None:
    async def test() -> None:
        async with listening() as (node, deliverer):
            await declare(node, one())
            stored = deliverer.find(id_of(Target.LISTENER, "default", "tell"))
            assert stored is not None
            await awaited(deliverer.save(msgspec.structs.replace(stored.subscription, missed=7)))
            assert (await node.api.call(ShowListener("tell"))).missed == "7"

    run(test())
