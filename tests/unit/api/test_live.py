"""Live numbers: one sample a second for all who watch, and none for nobody."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
from tests.unit.nodes.rows import row as node_row

from mainspring.access.caller import LOCAL, Caller, Grant, Role
from mainspring.api import namespaces
from mainspring.api.handlers import namespaces as namespaces_handlers
from mainspring.api.handlers import samples as answers
from mainspring.api.handlers.namespaces import NamespaceCalls
from mainspring.api.handlers.samples import INTERVAL, LiveStreams
from mainspring.api.namespaces import ShowNamespace
from mainspring.api.request import Shared, write
from mainspring.api.submitting import Submit
from mainspring.jobs.store import ShowCounts
from mainspring.series import MINUTE, ReadNamespaceSeries, ReadSeries
from mainspring.server.metrics import OldestByNamespace

from .a_node import Node, opened, run

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from mainspring.api.handlers.namespaces import Figures
    from mainspring.nodes.model import NodeRow
    from mainspring.storage.engine import Answered, Budget, Query

PAY = Caller("pay", (Grant(Role.VIEWER, "*", ("pay*",)),))
PAY_TOO = Caller("other token", (Grant(Role.OPERATOR, "*", ("pay*",)),))


class Viewer:
    """A feed that keeps everything."""

    has_room = True

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.got = asyncio.Event()

    def replace(self, event: str, value: object) -> None:
        assert isinstance(value, Shared)
        self.events.append((event, value.encoded(event, lambda _, data: write(data))))
        self.got.set()

    def append(self, event: str, value: object, place: str = "") -> None:
        raise AssertionError

    def end(self) -> None:
        raise AssertionError

    def numbers(self) -> list[bytes]:
        return [data for event, data in self.events if event == "numbers"]


class Live:
    """The streams of a node, with the number of samples."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.samples = 0
        self.viewers: list[Viewer] = []
        ages = OldestByNamespace(node.service.roster.functions, node.reads, node.clock)
        calls = NamespaceCalls(node.service, node.reads, node.clock, tuple, ages.of, node.dead)
        node.api.add(calls.handlers)
        self._figures = calls.figures
        self.others: list[NodeRow] = []
        self.streams = LiveStreams(node.service, self._sample, lambda _: 7, lambda: self.others, calls.shown)
        node.api.add_streams(self.streams.followers)

    async def _sample(self, request: namespaces.FollowNumbers, caller: Caller) -> Figures:
        self.samples += 1
        return await self._figures(request, caller)

    async def watch(self, caller: Caller = LOCAL, **options: Any) -> tuple[Viewer, Callable[[], None]]:
        viewer = Viewer()
        self.viewers.append(viewer)
        leave = await self.node.api.follow(namespaces.FollowNumbers(**options), viewer, caller=caller)
        await viewer.got.wait()
        return viewer, leave

    async def second(self, *, watched: bool = True) -> None:
        """Let a second pass; all viewers get a sample if it is ``watched``."""
        for viewer in self.viewers:
            viewer.got.clear()
        self.node.clock.advance(INTERVAL)
        self.node.service.tick()
        for viewer in self.viewers if watched else ():
            await viewer.got.wait()


def test_many_viewers_get_the_same_bytes_of_one_sample_a_second() -> None:
    async def test() -> None:
        async with opened() as node:
            shown = Live(node)
            viewers = [(await shown.watch())[0] for _ in range(50)]
            await node.api.call(Submit(b"pay", b""))
            for _ in range(3):
                await shown.second()
            assert shown.samples == 4
            for place in range(4):
                assert len({id(viewer.numbers()[place]) for viewer in viewers}) == 1
            last = viewers[0].numbers()[-1]
            assert b'"waiting":1,"running":0,"scheduled":0,"submitted":1,"workers":7' in last
            assert len(shown.streams) == 1

    run(test())


def test_a_sample_reads_no_more_of_the_store_than_its_numbers_need(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with opened() as node:
            queries: list[Query[Any]] = []
            read = node.store.read

            def noted(query: Query[Any], budget: Budget, answered: Answered) -> None:
                queries.append(query)
                read(query, budget, answered)

            monkeypatch.setattr(node.store, "read", noted)
            shown = Live(node)
            for number in range(20):
                await node.api.call(Submit(b"f%d" % number, b""))
            await shown.watch(functions=True)
            await shown.second()
            series = [query for query in queries if isinstance(query, ReadSeries | ReadNamespaceSeries)]
            assert [(type(one), one.step) for one in series] == [(ReadNamespaceSeries, MINUTE)]
            assert [query.dead for query in queries if isinstance(query, ShowCounts)].count(True) == 1

    run(test())


def test_nothing_is_sampled_without_viewers() -> None:
    async def test() -> None:
        async with opened() as node:
            shown = Live(node)
            first, leave = await shown.watch()
            leave()
            second, leave_too = await shown.watch()
            assert second.numbers() == first.numbers(), "one that comes back gets the newest sample"
            assert shown.samples == 1
            leave_too()
            for _ in range(3):
                await shown.second(watched=False)
            assert (shown.samples, len(shown.streams)) == (1, 0)
            await shown.watch()
            assert shown.samples == 2

    run(test())


def test_callers_with_other_functions_get_other_numbers() -> None:
    async def test() -> None:
        async with opened() as node:
            shown = Live(node)
            await node.api.call(Submit(b"mail", b""))
            await node.api.call(Submit(b"payroll", b""))
            await node.api.call(Submit(b"pay", b"", namespace="shop"))
            whole, _ = await shown.watch(functions=True)
            part, _ = await shown.watch(PAY, functions=True)
            same, _ = await shown.watch(PAY_TOO)
            team, _ = await shown.watch(namespace="shop", functions=True)
            await shown.second()
            assert len(shown.streams) == 3
            assert [b'"waiting":2' in one.numbers()[-1] for one in (whole, part, same, team)] == [True] + 3 * [False]
            assert [b'"submitted":1' in one.numbers()[-1] for one in (part, same, team)] == 3 * [True]
            assert part.numbers()[-1] is same.numbers()[-1]
            functions = [dict(one.events)["functions"] for one in (whole, part, team)]
            jobs = b'{"waiting":1,"running":0,"workers":0,"running_at_all_nodes":0}'
            assert functions == [
                b'{"functions":{"mail":%s,"payroll":%s},"more":false}' % (jobs, jobs),
                b'{"functions":{"payroll":%s},"more":false}' % jobs,
                b'{"functions":{"pay":%s},"more":false}' % jobs,
            ]
            assert "functions" not in dict(same.events)

    run(test())


def test_overviews_follow_the_functions_that_they_show() -> None:
    async def test() -> None:
        async with opened() as node:
            shown = Live(node)
            for name, number in ((b"mail", 3), (b"payroll", 1), (b"pay", 2)):
                for _ in range(number):
                    await node.api.call(Submit(name, b""))
            viewer, _ = await shown.watch(troubled=True)
            part, _ = await shown.watch(PAY, troubled=True)
            every, _ = await shown.watch(functions=True, troubled=True)
            jobs = b'"%s":{"waiting":%d,"running":%d,"workers":%d,"running_at_all_nodes":%d}'
            assert dict(viewer.events)["functions"] == b'{"functions":{},"more":true}', "nobody has asked for a status"
            await node.api.call(ShowNamespace(), caller=PAY)
            await shown.second()
            pay, payroll = jobs % (b"pay", 2, 0, 0, 0), jobs % (b"payroll", 1, 0, 0, 0)
            for one in (viewer, part):
                assert dict(one.events)["functions"] == b'{"functions":{%s,%s},"more":true}' % (pay, payroll)
            assert b'"mail"' in dict(every.events)["functions"]
            node.worker(b"pay", places=2)
            await node.committed()
            await shown.second()
            running = jobs % (b"pay", 0, 2, 1, 2)
            assert dict(part.events)["functions"] == b'{"functions":{%s,%s},"more":true}' % (running, payroll)

    run(test())


def test_the_number_of_shown_functions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces_handlers, "MOST_SHOWN", 3)

    async def test() -> None:
        async with opened() as node:
            shown = Live(node)
            for prefix in (b"a", b"b"):
                for number in range(3):
                    await node.api.call(Submit(b"%s%d" % (prefix, number), b""))
            for pattern in ("a*", "b*"):
                await node.api.call(ShowNamespace(), caller=Caller(pattern, (Grant(Role.VIEWER, "*", (pattern,)),)))
            viewer, _ = await shown.watch(troubled=True)
            functions = json.loads(dict(viewer.events)["functions"])["functions"]
            assert sorted(functions) == ["b0", "b1", "b2"]

    run(test())


def test_jobs_that_run_at_other_nodes_are_counted_once_the_caller_may_see_them() -> None:
    async def test() -> None:
        async with opened() as node:
            shown = Live(node)
            other = node_row(2, functions=(b"mail", b"pay", b"shop\x1fpay", b"idle"))
            shown.others = [msgspec.structs.replace(other, loads=((1, 4), (1, 5), (1, 6), (1, 0)))]
            node.worker(b"pay")
            await node.api.call(Submit(b"pay", b""))
            whole, _ = await shown.watch(functions=True)
            part, _ = await shown.watch(PAY, functions=True)
            mail = b'"mail":{"waiting":0,"running":0,"workers":0,"running_at_all_nodes":4}'
            pay = b'"pay":{"waiting":0,"running":1,"workers":1,"running_at_all_nodes":6}'
            functions = [dict(one.events)["functions"] for one in (whole, part)]
            assert functions == [b'{"functions":{%s},"more":false}' % text for text in (mail + b"," + pay, pay)]

    run(test())


def test_a_sample_has_a_bounded_number_of_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_FUNCTIONS", 2)

    async def test() -> None:
        async with opened() as node:
            shown = Live(node)
            for name in (b"c", b"a", b"b"):
                await node.api.call(Submit(name, b""))
            viewer, _ = await shown.watch(functions=True)
            (functions,) = (data for event, data in viewer.events if event == "functions")
            assert functions.startswith(b'{"functions":{"a":')
            assert b'"c"' not in functions
            assert functions.endswith(b'"more":true}')

    run(test())
