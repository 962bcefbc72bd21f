"""Calls about functions, without a face."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from tests.unit.jobs.a_node import unexpected
from tests.unit.nodes.rows import row as node_row

from mainspring.access.caller import LOCAL, Caller, Grant, Role
from mainspring.api import functions, jobs
from mainspring.api.handlers import functions as answers
from mainspring.api.handlers.functions import FunctionCalls
from mainspring.api.handlers.grants import FunctionGrants
from mainspring.api.handlers.registry import Api
from mainspring.api.nodes import WaitingJobs
from mainspring.api.request import ApiError, Code
from mainspring.api.submitting import JobOptions, Submit
from mainspring.errors import StoreFullError
from mainspring.features import Feature
from mainspring.jobs.held import Worker
from mainspring.jobs.model import FUNCTION_LIMIT, Job, Priority, State, failure
from mainspring.resources.rules import Limits, RateSpec, Times
from mainspring.workflows.model import decision_function

from .a_node import opened, run

if TYPE_CHECKING:
    from mainspring.api.request import Request
    from mainspring.api.submitting import PriorityName

    from .a_node import Node


def test_limits_are_changed_one_by_one() -> None:
    async def test() -> None:
        async with opened() as node:
            info = await node.api.call(functions.LimitFunction("f", concurrency=5, rate=RateSpec(9, 60.0)))
            assert (info.concurrency, info.rate, info.source) == (5, RateSpec(9, 60.0, 9), "command")
            info = await node.api.call(functions.LimitFunction("f", concurrency=None))
            assert (info.concurrency, info.rate) == (None, RateSpec(9, 60.0, 9))
            assert (await node.api.call(functions.LimitFunction("f", unlimited=True))).rate is None
            assert (await node.api.call(functions.LimitFunction("f", declared=True))).source is None
            paused = await node.api.call(functions.PauseFunction("f"))
            assert await node.api.call(functions.ShowFunction("f")) == functions.FunctionInfo(
                "f",
                True,
                None,
                None,
                None,
                None,
                None,
                0,
                0,
                0,
                None,
                paused_at="2023-11-14T22:13:20.000000Z",
                revision=paused.revision,
                dead_letters=0,
                waiting_by_priority=WaitingJobs(0, 0, 0),
                paused_by="local",
            )
            assert not (await node.api.call(functions.ResumeFunction("f"))).paused

    run(test())


def test_a_pause_has_a_reason_and_an_end() -> None:
    async def test() -> None:
        async with opened() as node:
            call = node.api.call
            until = datetime.fromtimestamp(node.clock.wall() + 60, UTC)
            paused = await call(functions.PauseFunction("f", "the bank is down", until))
            assert (paused.pause_reason, paused.paused_until) == ("the bank is down", "2023-11-14T22:14:20.000000Z")
            repeated = await call(functions.PauseFunction("f"))
            assert (repeated.paused, repeated.pause_reason, repeated.paused_until) == (True, None, None)
            assert repeated.paused_at == paused.paused_at
            ann = Caller("ann", (Grant(Role.OPERATOR, "default"),))
            by_ann = await node.api.call(functions.PauseFunction("f"), caller=ann)
            assert (repeated.paused_by, by_ann.paused_by) == (LOCAL.name, "ann")
            assert by_ann.revision == repeated.revision, (
                "earlier versions, which do not know who it was, have the same one"
            )
            resumed = await call(functions.ResumeFunction("f"))
            assert (resumed.paused, resumed.paused_at, resumed.paused_by) == (False, None, None)
            assert (
                await node.code(functions.PauseFunction("f", until=datetime.fromtimestamp(node.clock.wall(), UTC)))
                is Code.INVALID
            )

    run(test())


def test_a_revision_prevents_a_lost_update_and_declarations_do_not_change_it() -> None:
    async def test() -> None:
        async with opened() as node:
            call = node.api.call
            first = await call(functions.LimitFunction("f", concurrency=5))
            node.service.functions.declare(b"f", Limits(concurrency=9))
            worker = Worker(cast("Any", None))
            node.service.functions.declare_times(worker, {b"f": Times(start_within=5.0, deadline=60.0)})
            await node.committed()
            shown = await call(functions.ShowFunction("f"))
            assert (shown.start_within, shown.deadline) == (5.0, 60.0)
            second = await call(functions.LimitFunction("f", concurrency=6, revision=first.revision))
            for stale in (
                functions.LimitFunction("f", concurrency=7, revision=first.revision),
                functions.PauseFunction("f", revision=first.revision),
                functions.ResumeFunction("f", revision=first.revision),
            ):
                assert await node.code(stale) is Code.CHANGED
            assert (await call(functions.ShowFunction("f"))).concurrency == 6
            assert (await call(functions.LimitFunction("f", declared=True, revision=second.revision))).concurrency == 9

    run(test())


def test_a_workflow_has_limits_of_its_open_runs() -> None:
    async def test() -> None:
        async with opened() as node:
            await node.api.call(functions.LimitFunction("order", concurrency=5))
            node.service.workers.became_root(b"order")
            info = await node.api.call(functions.LimitFunction("order", concurrency=3))
            assert (info.concurrency, info.source) == (3, "command")
            assert (await node.api.call(functions.PauseFunction("order"))).paused
            info = await node.api.call(functions.LimitFunction("order", unlimited=True))
            assert (info.concurrency, info.paused) == (None, True)

    run(test())


def test_dead_letters_are_counted_while_the_store_can_be_read() -> None:
    async def test() -> None:
        async with opened() as node:
            side = node.worker(b"f", places=2)
            handles = [await node.submit() for _ in range(2)]
            await node.submit(b"g")
            for held in side.given:
                node.service.settling.failed(held, failure("E", "why"), final=True)
            await node.committed()
            listed = await node.api.call(functions.ListFunctions())
            assert [(one.function, one.dead_letters) for one in listed.items] == [("f", 2), ("g", 0)]
            await node.api.call(jobs.RetryJob(handles[0]))
            assert (await node.api.call(functions.ShowFunction("f"))).dead_letters == 1
            node.store.error = StoreFullError("full")
            listed = await node.api.call(functions.ListFunctions())
            assert [(one.function, one.dead_letters) for one in listed.items] == [("f", None), ("g", None)]

    run(test())


def test_functions_with_dead_letters_alone_are_listed_and_shown() -> None:
    async def test() -> None:
        async with opened() as node:
            for function in (b"c", b"a", b"b", b"team\x1fd"):  # as after a restart: in the store alone
                node.store.tables.counts.add(function, State.FAILED, Priority.NORMAL)
            await node.submit(b"f")
            listed = await node.api.call(functions.ListFunctions())
            expected = [("a", 1), ("b", 1), ("c", 1), ("f", 0)]
            assert [(one.function, one.dead_letters) for one in listed.items] == expected
            found, after = [], None
            for _ in range(9):
                page = await node.api.call(functions.ListFunctions(limit=1, cursor=after))
                found += [one.function for one in page.items]
                after = page.next
                if after is None:
                    break
            assert sorted(found) == ["a", "b", "c", "f"]
            assert (await node.api.call(functions.ShowFunction("a"))).dead_letters == 1
            assert await node.code(functions.ShowFunction("d")) is Code.FUNCTION_NOT_FOUND
            node.store.tables.counts.add(b"a", State.FAILED, Priority.NORMAL, -1)
            assert await node.code(functions.ShowFunction("a")) is Code.FUNCTION_NOT_FOUND

    run(test())


def test_waiting_jobs_are_counted_by_priority() -> None:
    async def test() -> None:
        async with opened() as node:
            priorities: tuple[PriorityName, ...] = ("high", "low", "low", "normal", "low")
            for priority in priorities:
                await node.api.call(Submit(b"f", b"", options=JobOptions(priority=priority)))
            await node.committed()
            shown = await node.api.call(functions.ShowFunction("f"))
            assert (shown.waiting, shown.waiting_by_priority) == (5, WaitingJobs(high=1, normal=1, low=3))

    run(test())


async def search(node: Node, name: str, *, limit: int = 1000, caller: Caller = LOCAL) -> list[list[str]]:
    """Return the names of the functions on each page of a search."""
    pages: list[list[str]] = []
    after = None
    while True:
        request = functions.ListFunctions(limit=limit, cursor=after, name=name)
        listed = await node.api.call(request, caller=caller)
        pages.append([one.function for one in listed.items])
        after = listed.next
        if after is None:
            return pages


def test_functions_are_found_by_a_part_of_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with opened() as node:
            for name in (b"mail", b"payroll", b"Repay", b"scan", b"pay"):
                await node.api.call(Submit(name, b""))
            await node.api.call(Submit(b"pay", b"", namespace="shop"))
            for paused in ("prepay", "other"):
                await node.api.call(functions.PauseFunction(paused))
            assert await search(node, "PAY") == [["Repay", "pay", "payroll", "prepay"]]
            assert await search(node, "none") == [[]]
            pay = Caller("pay", (Grant(Role.VIEWER, "default", ("pay*",)),))
            assert await search(node, "ay", caller=pay) == [["pay", "payroll"]]
            for limit in (1, 2, 3, 4):
                pages = await search(node, "pay", limit=limit)
                assert sorted(name for page in pages for name in page) == ["Repay", "pay", "payroll", "prepay"]
                assert all(len(page) <= limit for page in pages)
            monkeypatch.setattr(answers, "MOST_SEARCHED", 2)
            pages = await search(node, "scan", limit=1)
            assert [page for page in pages if page] == [["scan"]]
            assert len(pages) > 2, "each answer searches a part"

    run(test())


def test_running_jobs_are_those_of_all_nodes_too() -> None:
    async def test() -> None:
        async with opened() as node:
            other = msgspec.structs.replace(node_row(2, functions=(b"g", b"f")), loads=((1, 9), (1, 4)))
            calls = FunctionCalls(node.service, node.dead, lambda: [other, other])
            api = Api(FunctionGrants(calls.handlers).handlers)
            node.worker()
            await node.submit()
            await node.committed()
            shown = await api.call(functions.ShowFunction("f"))
            assert (shown.running, shown.running_at_all_nodes) == (1, 9)

    run(test())


def test_functions_are_listed_in_pages() -> None:
    async def test() -> None:
        async with opened() as node:
            node.service.dispatch.complete = False
            names = {"a", "b", "c", "paused"}
            for name in names - {"paused"}:
                await node.submit(name.encode())
            await node.api.call(functions.PauseFunction("paused"))
            found: list[str] = []
            after: str | None = None
            for _ in range(10):
                page = await node.api.call(functions.ListFunctions(limit=1, cursor=after))
                assert len(page.items) <= 1
                found += [one.function for one in page.items]
                if page.next is None:
                    break
                after = page.next
            assert sorted(found) == sorted(names)

    run(test())


def test_registered_functions_of_all_nodes_are_found() -> None:
    async def test() -> None:
        async with opened() as node:
            node.worker(b"f", b"g")
            assert await node.api.call(functions.IsRegistered("f")) == functions.Registration(True, False, [])
            assert await node.api.call(functions.IsRegistered("h")) == functions.Registration(None, False, ["f", "g"])

    run(test())


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (functions.ListFunctions(cursor="x"), Code.INVALID),
        (functions.ShowFunction("none"), Code.FUNCTION_NOT_FOUND),
        (functions.LimitFunction("f"), Code.INVALID),
        (functions.LimitFunction("f", concurrency=0), Code.INVALID),
        (functions.LimitFunction("f", concurrency=1, declared=True), Code.INVALID),
        (functions.PauseFunction(""), Code.INVALID),
        (functions.PauseFunction("f\x1f"), Code.INVALID),
        (functions.PauseFunction("f" * (FUNCTION_LIMIT + 1)), Code.TOO_LARGE),
    ],
)
def test_problems_have_codes(request_: Request[object], code: Code) -> None:
    async def test() -> None:
        async with opened() as node:
            assert await node.code(request_) is code

    run(test())


def test_limits_are_refused_by_a_full_node_and_by_a_store_without_limits() -> None:
    async def test() -> None:
        async with opened() as node:
            await node.submit()
            node.service.dispatch.most = 1
            assert await node.code(functions.PauseFunction("new")) is Code.TOO_MANY_FUNCTIONS
            node.store.error = StoreFullError("full")
            assert await node.code(functions.PauseFunction("f")) is Code.UNAVAILABLE
        async with opened(lacks=frozenset({Feature.LIMITS})) as node:
            assert await node.code(functions.PauseFunction("f")) is Code.UNSUPPORTED

    run(test())


def test_decisions_of_a_workflow_are_named_as_they_are_listed() -> None:
    async def test() -> None:
        async with opened() as node:
            name = "order@2 (decisions)"
            function = decision_function("default", "order", "2")
            job = Job(node.service.table.next_id(), function, b"")
            node.service.intake.submit([job], lambda *_: None, unexpected)
            await node.committed()
            handle = node.service.handles.of(job.id).decode()
            assert (await node.api.call(functions.ShowFunction(name))).function == name
            listed = await node.api.call(jobs.ListJobs(function=name))
            assert [(one.handle, one.function) for one in listed.items] == [(handle, name)]
            for change in (functions.PauseFunction(name), functions.LimitFunction(name, concurrency=1)):
                with pytest.raises(ApiError, match="pause the workflow order instead"):
                    await node.api.call(change)

    run(test())
