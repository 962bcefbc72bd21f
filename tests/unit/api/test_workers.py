"""Calls about workers, without a face: those of this node and of another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from tests.unit.nodes.rows import row

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api import nodes
from mainspring.api.handlers.nodes import MOST_PROBLEMS, Verb, WatchedJob, WorkerCalls
from mainspring.api.handlers.registry import Api
from mainspring.api.request import ApiError, Code
from mainspring.events import Direct
from mainspring.nodes.model import Decider, WorkerRow

from .a_node import run

if TYPE_CHECKING:
    from mainspring.access.caller import Act


def a_worker(number: int, *namespaces: str, stops: bool = True) -> WorkerRow:
    return WorkerRow(number, f"w{number}", 4, 1, stops, False, stops, 1_000_000, "9.9", namespaces or ("default",))


class Fleet:
    """This node has the term 3 and three workers; another one has the term 2 and one worker."""

    def __init__(self) -> None:
        self.here = [a_worker(1), a_worker(10, "shop"), a_worker(2, stops=False)]
        self.directed: list[tuple[int, Verb]] = []
        self.sent: list[tuple[int, Direct]] = []
        decider = Decider(functions=(0,), running=7, steps=2, places=100, draining=False, cache=None)
        other = replace(row(2, name="b"), workers=(replace(a_worker(1), decider=decider),))
        calls = WorkerCalls(
            self,
            "a",
            lambda: 3,
            lambda: [other],
            lambda term, message: self.sent.append((term, message)),
            self.record,
        )
        self.watching = [WatchedJob(b"H:a:3", b"f", "status raises", 9.5), WatchedJob(b"H:a:4", b"g", "", 1.0)]
        self.acts: list[Act] = []
        self.api = Api(calls.handlers)

    async def record(self, act: Act) -> None:
        self.acts.append(act)

    def all(self) -> list[WorkerRow]:
        return self.here

    def details(self, number: int) -> tuple[list[bytes], dict[bytes, bytes]] | None:
        functions = [b"g", b"f", b"shop\x1fcart", b"\x1fd\x1fdefault\x1forder"]
        return functions, {b"H:a:3": b"f", b"H:a:4": b"g", b"H:a:5": b"shop\x1fcart"} if number == 1 else {}

    def decisions(self, number: int) -> tuple[int, int, int] | None:
        return (105, 5, 100) if number == 1 else None

    def watched(self, number: int) -> list[WatchedJob]:
        return self.watching if number == 1 else []

    def direct(self, number: int, verb: Verb) -> bool | None:
        self.directed.append((number, verb))
        return True


def test_workers_of_all_nodes_are_listed_in_pages() -> None:
    async def test() -> None:
        call = Fleet().api.call
        listed = await call(nodes.ListWorkers())
        assert [(one.id, one.node, one.client) for one in listed.items] == [
            ("2-1", "b", "extension"),
            ("3-1", "a", "extension"),
            ("3-2", "a", "gearman"),
        ]
        assert listed.next is None
        first = await call(nodes.ListWorkers(limit=2))
        assert [one.id for one in (await call(nodes.ListWorkers(limit=2, cursor=first.next))).items] == ["3-2"]

    run(test())


def test_a_worker_is_shown_with_its_functions_if_it_is_connected_here() -> None:
    async def test() -> None:
        call = Fleet().api.call
        here = await call(nodes.ShowWorker("3-1"))
        assert (here.functions, here.jobs, here.version) == (["f", "g"], ["H:a:3", "H:a:4"], "9.9")
        assert here.connected_at == "1970-01-01T00:00:01.000000Z"
        assert here.decisions == nodes.WorkerDecisions(105, 5, 100, full=True)
        assert here.watches == nodes.WorkerWatch(2, [nodes.WatchProblem("H:a:3", "f", "status raises", 9.5)], 1)
        assert (await call(nodes.ShowWorker("3-2"))).decisions is None
        assert (await call(nodes.ShowWorker("3-2"))).watches is None
        there = await call(nodes.ShowWorker("2-1"))
        assert (there.functions, there.jobs, there.slots) == (None, None, 4)
        assert there.decisions == nodes.WorkerDecisions(7, 2, 100, full=False)

    run(test())


def test_a_caller_with_some_functions_sees_their_jobs_and_changes_no_worker() -> None:
    async def test() -> None:
        fleet, caller = Fleet(), Caller("f", (Grant(Role.ADMIN, functions=("f",)),))
        shown = await fleet.api.call(nodes.ShowWorker("3-1"), caller=caller)
        assert (shown.functions, shown.jobs) == (["f"], ["H:a:3"])
        assert shown.watches is not None
        assert shown.watches.jobs == 1
        for request in (nodes.DrainWorker("3-1"), nodes.StopWorker("3-1")):
            with pytest.raises(ApiError) as caught:
                await fleet.api.call(request, caller=caller)
            assert caught.value.problem.code is Code.FORBIDDEN
        assert fleet.directed == []

    run(test())


def test_a_limited_number_of_failing_looks_is_shown() -> None:
    async def test() -> None:
        fleet = Fleet()
        many = [WatchedJob(b"H:a:%d" % number, b"f", "away", None) for number in range(MOST_PROBLEMS + 5)]
        fleet.watching = many
        shown = await fleet.api.call(nodes.ShowWorker("3-1"))
        assert shown.watches is not None
        assert (len(shown.watches.problems), shown.watches.failing) == (MOST_PROBLEMS, MOST_PROBLEMS + 5)

    run(test())


def test_requests_reach_a_worker_through_its_node() -> None:
    async def test() -> None:
        fleet = Fleet()
        assert (await fleet.api.call(nodes.DrainWorker("3-1"))).state == "draining"
        assert (await fleet.api.call(nodes.UndrainWorker("2-1"))).state == "live"
        await fleet.api.call(nodes.StopWorker("2-1"))
        assert fleet.directed == [(1, "drain")]
        assert fleet.sent == [(2, Direct(1, "undrain")), (2, Direct(1, "stop"))]
        assert [(act.what, act.object, act.namespace, act.before, act.after) for act in fleet.acts] == [
            ("workers.drain", "3-1", "default", "live", "draining"),
            ("workers.undrain", "2-1", "default", "live", "live"),
            ("workers.stop", "2-1", "default", None, None),
        ]

    run(test())


@pytest.mark.parametrize(
    ("shop", "code"),
    [
        ((), Code.FORBIDDEN),
        ((Grant(Role.VIEWER, "shop"),), Code.FORBIDDEN),
        ((Grant(Role.OPERATOR, "shop", ("cart",)),), Code.FORBIDDEN),
        ((Grant(Role.OPERATOR, "shop"),), None),
    ],
)
def test_a_worker_of_two_namespaces_is_changed_with_grants_in_both(shop: tuple[Grant, ...], code: Code | None) -> None:
    async def test() -> None:
        fleet = Fleet()
        fleet.here.append(a_worker(4, "default", "shop"))
        caller = Caller("ann", (Grant(Role.OPERATOR), *shop), token="t")
        for request in (nodes.DrainWorker("3-4"), nodes.StopWorker("3-4")):
            if code is None:
                await fleet.api.call(request, caller=caller)
                continue
            with pytest.raises(ApiError) as caught:
                await fleet.api.call(request, caller=caller)
            assert caught.value.problem.code is code
            assert "shop" not in caught.value.problem.message
        assert len(fleet.directed) == (2 if code is None else 0)

    run(test())


@pytest.mark.parametrize(
    ("worker", "code"),
    [
        ("3-9", Code.WORKER_NOT_FOUND),
        ("3-10", Code.WORKER_NOT_FOUND),
        ("x", Code.WORKER_NOT_FOUND),
        ("3-2", Code.CONFLICT),
    ],
)
def test_problems_have_codes(worker: str, code: Code) -> None:
    """The worker 3-10 is in another namespace, and 3-2 takes no requests to stop."""

    async def test() -> None:
        with pytest.raises(ApiError) as caught:
            await Fleet().api.call(nodes.StopWorker(worker))
        assert caught.value.problem.code is code

    run(test())


def test_a_place_in_the_list_is_checked() -> None:
    async def test() -> None:
        with pytest.raises(ApiError) as caught:
            await Fleet().api.call(nodes.ListWorkers(cursor="x"))
        assert caught.value.problem.code is Code.INVALID

    run(test())
