"""Versions of lists and objects: one sample for all who see the same, and none for nobody."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import structlog
from tests.unit.nodes.rows import row as node_row

from mainspring.access.caller import LOCAL, Caller, Grant, Role
from mainspring.api import jobs, schedules
from mainspring.api.handlers.namespaces import NamespaceCalls
from mainspring.api.handlers.nodes import SingleNodeCalls, namespace_node
from mainspring.api.handlers.nodes import _Row as Row
from mainspring.api.handlers.samples import INTERVAL, INTERVALS, PARTS, REPEAT, SAMPLES, VersionStreams
from mainspring.api.namespaces import FollowVersion, ListNamespaceNodes
from mainspring.api.request import ApiError
from mainspring.api.submitting import Submit
from mainspring.api.versions import BEATS, SCHEDULES_SHOWN, version_of
from mainspring.api.workflows import RunInfo
from mainspring.errors import StoreUnavailableError
from mainspring.features import Feature
from mainspring.jobs.model import failure
from mainspring.server.metrics import OldestByNamespace

from .a_node import Node, opened, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.api.request import Request

REPEATED = round(REPEAT / INTERVAL)
"""Samples after which a version is sent again."""
SHOP = Caller("shop", (Grant(Role.VIEWER, "shop"),))
PAY = Caller("pay", (Grant(Role.VIEWER, "*", ("pay*",)),))
PAY_TOO = Caller("another token", (Grant(Role.VIEWER, "*", ("pay*",)),))
EXTERNAL = Caller("mail", (Grant(Role.VIEWER, "*", ("mail",)),))


class Viewer:
    """A feed that keeps everything, with the bytes that all its clients share."""

    has_room = True

    def __init__(self) -> None:
        self.events: list[tuple[str, bytes]] = []
        self.is_ended = False

    def replace(self, event: str, value: Any) -> None:
        self.events.append((event, value.encoded(event, lambda _, data: msgspec.json.encode(data))))

    def append(self, event: str, value: object, place: str = "") -> None:
        raise AssertionError

    def end(self) -> None:
        self.is_ended = True

    @property
    def versions(self) -> list[str]:
        return [json.loads(data)["version"] for _, data in self.events]


class Versions:
    """The streams of a node, with the number of requests that its samplers make."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.requests = self._under_way = 0
        self._idle = asyncio.Event()
        self.streams = VersionStreams(node.service, self._read)
        node.api.add_streams(self.streams.followers)
        node.api.add(SingleNodeCalls(lambda: node_row(1)).handlers)

    async def _read(self, request: Request[Any], caller: Caller) -> Any:
        self.requests += 1
        self._under_way += 1
        self._idle.clear()
        try:
            return await self.node.api.answer_unrecorded(request, caller)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def watch(self, *subject: Any, caller: Caller = LOCAL, **options: Any) -> tuple[Viewer, Callable[[], None]]:
        viewer = Viewer()
        leave = await self.node.api.follow(FollowVersion(*subject, **options), viewer, caller=caller)
        return viewer, leave

    async def pass_time(self, seconds: float = INTERVAL) -> None:
        """Let time pass, and all samples of this time be taken."""
        self.node.clock.advance(seconds)
        self.node.service.tick()
        while self._under_way:  # a sample has several requests
            await self._idle.wait()


async def add(node: Node, name: str, function: str = "task", every: float = 3600.0, **options: Any) -> None:
    await node.api.call(schedules.AddSchedule(name=name, function=function, every=every, **options))


def test_a_version_is_sent_at_first_and_after_each_change_as_the_same_bytes() -> None:
    async def test() -> None:
        async with opened() as node:
            shown = Versions(node)
            await add(node, "weekly")
            viewers = [(await shown.watch("schedules"))[0] for _ in range(50)]
            assert len(shown.streams) == 1
            await shown.pass_time()
            before = shown.requests
            await shown.pass_time()
            assert shown.requests - before == 2, "one sample: the list and its outcomes"
            assert {len(viewer.events) for viewer in viewers} == {1}, "nothing has changed"
            assert len({id(viewer.events[0][1]) for viewer in viewers[1:]}) == 1, "the first of them has caused a read"
            assert len({viewer.versions[0] for viewer in viewers}) == 1
            assert json.loads(viewers[1].events[0][1])["spread"] == 25, "all of them may have come back after a restart"
            await add(node, "nightly")
            await shown.pass_time()
            assert len({id(viewer.events[1][1]) for viewer in viewers}) == 1
            assert len(set(viewers[0].versions)) == 2
            assert viewers[0].events[1][0] == "version"
            assert json.loads(viewers[0].events[1][1])["spread"] == 25, "two of them are to read it in a second"
            handle = (await node.api.call(schedules.TriggerSchedule(name="nightly"))).handle
            await node.api.call(jobs.CancelJob(str(handle)))
            await shown.pass_time()
            assert len(set(viewers[0].versions)) == 3, "it has an outcome"

    run(test())


def test_nothing_is_read_without_viewers() -> None:
    async def test() -> None:
        async with opened() as node:
            shown = Versions(node)
            await add(node, "nightly")
            _, leave = await shown.watch("schedules")
            leave()
            second, leave_too = await shown.watch("schedules")
            leave_too()
            for _ in range(REPEATED):
                await shown.pass_time()
            assert (len(second.events), shown.requests, len(shown.streams)) == (0, 2, 0), (
                "one that comes back reads nothing"
            )

    run(test())


def test_callers_see_versions_of_what_they_may_see() -> None:
    async def test() -> None:
        async with opened() as node:
            shown = Versions(node)
            pay, _ = await shown.watch("schedules", caller=PAY)
            same, _ = await shown.watch("schedules", caller=PAY_TOO)
            mail, _ = await shown.watch("schedules", caller=EXTERNAL)
            shop, _ = await shown.watch("schedules", caller=SHOP, namespace="shop")
            assert len(shown.streams) == 3
            await shown.pass_time()
            await add(node, "wages", "payroll")
            await shown.pass_time()
            assert [len(one.events) for one in (pay, same, mail, shop)] == [2, 2, 1, 1]
            assert pay.events[1][1] is same.events[1][1]
            await add(node, "open", "door", namespace="shop")
            await shown.pass_time()
            assert [len(one.events) for one in (pay, same, mail, shop)] == [2, 2, 1, 2]
            with pytest.raises(ApiError, match="lacks the permission"):
                await shown.watch("schedules", caller=SHOP)

    run(test())


@pytest.mark.parametrize("caller", [LOCAL, PAY])
def test_an_object_is_followed_until_it_is_gone(caller: Caller) -> None:
    async def test() -> None:
        async with opened() as node:
            shown = Versions(node)
            await add(node, "wages", "payroll")
            await add(node, "letters", "mail")
            viewer, _ = await shown.watch("schedule", "wages", caller=caller)
            other, _ = await shown.watch("schedule", "letters")
            await node.api.call(schedules.PauseSchedule(name="wages"))
            await shown.pass_time()
            await node.api.call(schedules.RemoveSchedule(name="wages"))
            await shown.pass_time()
            assert viewer.versions[2:] == [""]
            assert viewer.is_ended
            assert (len(other.events), other.is_ended) == (1, False)
            assert len(shown.streams) == 1, "another object of this name may come"
            with pytest.raises(ApiError, match="there is no schedule"):
                await shown.watch("schedule", "wages", caller=caller)
            if caller is PAY:
                with pytest.raises(ApiError, match="lacks the permission"):
                    await shown.watch("schedule", "letters", caller=caller)
            assert len(shown.streams) == 1

    run(test())


def test_an_object_that_a_caller_may_not_see_any_more_is_gone() -> None:
    async def test() -> None:
        async with opened() as node:
            shown = Versions(node)
            await add(node, "wages", "payroll")
            viewer, _ = await shown.watch("schedule", "wages", caller=PAY)
            await node.api.call(schedules.EditSchedule(name="wages", function="mail"))
            await shown.pass_time()
            assert (viewer.versions[1:], viewer.is_ended) == ([""], True)

    run(test())


def test_a_version_is_sent_again_while_it_can_be_read() -> None:
    """So a page can show that it is not live, in place of an old version."""

    async def test() -> None:
        async with opened() as node:
            shown = Versions(node)
            viewer, _ = await shown.watch("schedules")
            with structlog.testing.capture_logs() as logs:
                for _ in range(REPEATED):
                    await shown.pass_time()
                assert len(viewer.events) == 2
                node.store.error = StoreUnavailableError("gone")
                for _ in range(3 * REPEATED):
                    await shown.pass_time()
                assert (len(viewer.events), viewer.is_ended) == (2, False)
                node.store.error = None
                for _ in range(REPEATED):
                    await shown.pass_time()
            assert (len(viewer.events), len(set(viewer.versions))) == (3, 1)
            assert [(one["subject"], one["problem"]) for one in logs] == [("schedules", "gone")], (
                "one line for all failures"
            )
            await add(node, "nightly")
            await shown.pass_time()
            assert len(set(viewer.versions)) == 2

    run(test())


def test_no_client_gets_a_version_that_may_be_older_than_its_page() -> None:
    async def test() -> None:
        async with opened() as node:
            shown = Versions(node)
            first, _ = await shown.watch("schedules")
            await add(node, "nightly")
            second, _ = await shown.watch("schedules")
            assert not second.events
            await shown.pass_time()
            assert second.versions == first.versions[1:]
            for _ in range(REPEATED):
                await shown.pass_time()
            assert second.versions == 2 * first.versions[1:2], "both get it again"

    run(test())


def test_an_object_that_comes_back_has_new_versions() -> None:
    async def test() -> None:
        async with opened() as node:
            shown = Versions(node)
            await add(node, "wages")
            viewer, _ = await shown.watch("schedule", "wages")
            await node.api.call(schedules.RemoveSchedule(name="wages"))
            await shown.pass_time()
            assert viewer.is_ended
            await add(node, "wages")
            second, _ = await shown.watch("schedule", "wages")
            await shown.pass_time()
            await shown.pass_time()
            assert "" not in second.versions
            assert (second.is_ended, len(shown.streams)) == (False, 1), "the end of the first sampler ends no other"

    run(test())


def test_the_audit_names_no_caller_for_later_reads() -> None:
    async def test() -> None:
        async with opened() as node:
            shown = Versions(node)
            await add(node, "wages", "payroll")
            with pytest.raises(ApiError, match="lacks the permission"):
                await shown.watch("schedule", "wages", caller=EXTERNAL)
            await shown.watch("schedule", "wages", caller=PAY)
            await node.api.call(schedules.EditSchedule(name="wages", function="mail"))
            await shown.pass_time()
            assert [(one.who, one.what) for one in node.refused] == [("mail", "live.follow")]

    run(test())


def test_the_list_of_schedules_changes_with_the_shown_ones_and_their_number() -> None:
    async def test() -> None:
        async with opened() as node:
            shown = Versions(node)
            for number in range(SCHEDULES_SHOWN):
                await add(node, f"s{number:02}")
            viewer, _ = await shown.watch("schedules")
            await add(node, "z", every=99_999.0)
            await shown.pass_time()
            assert len(set(viewer.versions)) == 2, "there is another one"
            await node.api.call(schedules.TriggerSchedule(name="z"))
            await node.api.call(schedules.EditSchedule(name="z", function="other"))
            await shown.pass_time()
            assert len(set(viewer.versions)) == 2, "it is not shown"
            await node.api.call(schedules.EditSchedule(name="s07", function="other"))
            await shown.pass_time()
            assert len(set(viewer.versions)) == 3

    run(test())


def test_slow_and_many_samples_leave_most_of_the_time_to_other_work() -> None:
    async def test() -> None:
        async with opened() as node:
            shown = Versions(node)
            await shown.watch("schedules")
            await shown.pass_time()
            node.clock.advance(INTERVAL)
            node.service.tick()  # the sample has begun, and takes a second
            node.clock.advance(INTERVAL)
            await shown.pass_time(0)
            before = shown.requests
            for _ in range(PARTS - 2):
                await shown.pass_time()
            assert shown.requests == before
            await shown.pass_time()
            assert shown.requests > before

    async def many() -> None:
        async with opened() as node:
            shown = Versions(node)
            for number in range(3 * SAMPLES):
                await add(node, f"s{number}")
                await shown.watch("schedule", f"s{number}")
            for _ in range(3):
                await shown.pass_time()
            assert shown.streams.parts() == 3 * SAMPLES * PARTS, "they share one part of the time"
            before = shown.requests
            for _ in range(9):
                await shown.pass_time()
            assert shown.requests - before == 2 * 9 * SAMPLES

    run(test())
    run(many())


def test_the_version_of_the_overview_changes_with_its_troubles() -> None:
    async def test() -> None:
        async with opened(lacks=frozenset({Feature.WORKFLOWS})) as node:
            shown = Versions(node)
            ages = OldestByNamespace(node.service.roster.functions, node.reads, node.clock)
            node.api.add(NamespaceCalls(node.service, node.reads, node.clock, tuple, ages.of, node.dead).handlers)
            side = node.worker(b"pay")
            viewer, _ = await shown.watch("troubles")
            part, _ = await shown.watch("troubles", caller=PAY)
            other, _ = await shown.watch("troubles", caller=EXTERNAL)
            samples = shown.requests
            await shown.pass_time()
            assert shown.requests == samples, "its samples need many requests"
            await node.api.call(Submit(b"pay", b""))
            node.service.settling.failed(side.given[0], failure("E", "why"), final=True)
            await node.committed()
            for _ in range(2):
                await shown.pass_time(INTERVALS["troubles"])
            assert [len(set(one.versions)) for one in (viewer, part, other)] == [2, 2, 1]
            await add(node, "nightly")
            for _ in range(2):
                await shown.pass_time(INTERVALS["troubles"])
            assert [len(set(one.versions)) for one in (viewer, part, other)] == [3, 2, 1]

    run(test())


@pytest.mark.parametrize(("caller", "requests"), [(LOCAL, 1), (PAY, 2)])
def test_nodes_are_read_once_for_those_who_see_all(caller: Caller, requests: int) -> None:
    async def test() -> None:
        async with opened() as node:
            shown = Versions(node)
            await shown.watch("nodes", caller=caller)
            assert shown.requests == requests

    run(test())


def test_versions_of_nodes_ignore_what_changes_all_the_time() -> None:
    def version(**changes: Any) -> str:
        row = msgspec.structs.replace(node_row(1, counter=BEATS), **changes.pop("row", {}))
        return version_of([namespace_node(Row(row, dead=False, **changes), ListNamespaceNodes(), LOCAL)])

    assert version(left=3.0) == version(left=2.0)
    assert version(row={"counter": 2 * BEATS - 1}) == version()
    assert version(row={"counter": 2 * BEATS}) != version()
    assert version(row={"draining": True}) != version()


def waiting(text: str) -> str:
    return version_of(
        [
            RunInfo(
                handle="h",
                id="w",
                type="t",
                version="1",
                status="open",
                started_at=None,
                closed_at=None,
                events=1,
                waits_for=text,
                run="h@1",
                parked_at=None,
            )
        ]
    )


def test_versions_of_runs_ignore_the_length_of_their_timers() -> None:
    texts = ["2d4h", "1d", "58m59s", "58m", "7s", "0s"]
    assert len({waiting(f"charge #2, timer {text}, approved and 3 more") for text in texts}) == 1
    assert len({waiting(f"attempt 2 in {text}") for text in texts}) == 1
    assert waiting("charge #2, timer 7s") != waiting("charge #3, timer 7s")
    assert waiting("timer 7s, timer 8s") != waiting("timer 7s")
