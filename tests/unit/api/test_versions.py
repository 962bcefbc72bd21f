"""Versions of lists and objects: one sample for all who see the same, and none for nobody."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.unit.nodes.rows import row as node_row

from mainspring.access.caller import LOCAL, Caller
from mainspring.access.roles import Grant, Role
from mainspring.api import jobs, schedules
from mainspring.api.answers.nodes import SingleNodeCalls, namespace_node
from mainspring.api.answers.nodes import _Row as Row
from mainspring.api.answers.sample_loop import INTERVAL
from mainspring.api.answers.version_streams import PARTS, SAMPLES, VersionStreams
from mainspring.api.errors import ApiError
from mainspring.api.live import FollowVersion
from mainspring.api.namespaces import ListNodes
from mainspring.api.versions import BEATS, version_of
from mainspring.errors import StoreUnavailableError

from .a_node import Node, opened, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.api.request import Request

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
            return await self.node.api.answer(request, caller)
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


async def add(node: Node, name: str, function: str = "task", **options: Any) -> None:
    await node.api.call(schedules.Add(name=name, function=function, every=3600.0, **options))


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
            await add(node, "nightly")
            await shown.pass_time()
            for place in range(2):
                assert len({id(viewer.events[place][1]) for viewer in viewers}) == 1
            assert len(set(viewers[0].versions)) == 2
            assert viewers[0].events[1][0] == "version"
            assert json.loads(viewers[0].events[1][1])["spread"] == 25, "two of them are to read it in a second"
            handle = (await node.api.call(schedules.Trigger(name="nightly"))).handle
            await node.api.call(jobs.Cancel(str(handle)))
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
            assert (len(second.events), shown.requests) == (1, 2), "one that comes back gets the newest version"
            leave_too()
            for _ in range(3):
                await shown.pass_time()
            assert (shown.requests, len(shown.streams)) == (2, 0)

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
            await node.api.call(schedules.Pause(name="wages"))
            await shown.pass_time()
            await node.api.call(schedules.Remove(name="wages"))
            await shown.pass_time()
            assert viewer.versions[2:] == [""]
            assert viewer.is_ended
            assert (len(other.events), other.is_ended) == (1, False)
            await shown.pass_time()
            assert len(shown.streams) == 1
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
            await node.api.call(schedules.Edit(name="wages", function="mail"))
            await shown.pass_time()
            assert (viewer.versions[1:], viewer.is_ended) == ([""], True)

    run(test())


def test_a_store_that_does_not_answer_changes_no_version() -> None:
    async def test() -> None:
        async with opened() as node:
            shown = Versions(node)
            viewer, _ = await shown.watch("schedules")
            node.store.error = StoreUnavailableError("gone")
            await shown.pass_time()
            node.store.error = None
            await add(node, "nightly")
            await shown.pass_time()
            assert (len(set(viewer.versions)), viewer.is_ended) == (2, False)

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
            before = shown.requests
            for _ in range(9):
                await shown.pass_time()
            assert shown.requests - before == 2 * 9 * SAMPLES

    run(test())
    run(many())


def test_versions_of_nodes_ignore_what_changes_all_the_time() -> None:
    def version(**changes: Any) -> str:
        row = msgspec.structs.replace(node_row(1, counter=BEATS), **changes.pop("row", {}))
        return version_of([namespace_node(Row(row, dead=False, **changes), ListNodes(), LOCAL)])

    assert version(left=3.0) == version(left=2.0)
    assert version(row={"counter": 2 * BEATS - 1}) == version()
    assert version(row={"counter": 2 * BEATS}) != version()
    assert version(row={"draining": True}) != version()
