"""Two nodes begin runs of a workflow with limits, at the same time: never more than the limit, and no start is left."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from tests.conformance.suite.place_flows import fill, limit, open_runs, starts

from mainspring.jobs.model import State
from mainspring.jobs.run_places import Filled
from mainspring.resources.rules import Limits, Rate
from mainspring.workflows import store as ops
from mainspring.workflows.model import Key

from .run_nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.suite.flows import Flows

    from mainspring.storage.engine import Operation


@pytest.fixture
def nodes(database: str) -> Iterator[Nodes]:
    """Open two nodes; check all runs afterwards."""
    opened = Nodes(database)
    try:
        yield opened
        opened.flows[1].check()
    finally:
        opened.close()


def test_a_node_does_not_count_beside_another_one(nodes: Nodes) -> None:
    one, two = nodes.flows
    limit(one, Limits(concurrency=1))
    first, second = one.new(), two.new()
    nodes.during((one, [one.starting(first)]), (two, [two.starting(second)]))
    assert len(open_runs(one)) == 1
    assert fill(two) == Filled()


def test_a_node_does_not_wait_for_another_one_that_fills_places(nodes: Nodes) -> None:
    one, two = nodes.flows
    limit(one, Limits(concurrency=3))
    _, second = nodes.during((one, [one.starting(one.new())]), (two, [ops.FillPlaces(b"order", 9, two.now_us)]))
    assert second == [Filled(is_busy=True)]


def test_a_rate_is_one_for_all_nodes(nodes: Nodes) -> None:
    one, two = nodes.flows
    two.wait(-(10**9))  # its clock is behind: the time is the store's
    limit(one, Limits(rate=Rate(1, 600_000_000, 3)))
    for flows in (one, two, one, two):
        starts(flows, 1)
    assert len(open_runs(one)) == 3


def group(flows: Flows, choose: random.Random) -> list[Operation]:
    """Return a group of starts, ends and looks."""
    key = choose.choice([b"eu", b"us", b""])
    operations: list[Operation] = []
    if choose.random() < 0.7:
        operations.append(flows.starting(flows.new(key=key)))
    if choose.random() < 0.5 and (runs := open_runs(flows)):
        operations.append(ops.TerminateRun(Key(run=choose.choice(runs)), "", flows.now_us))
    operations.append(ops.FillPlaces(b"order", 5, flows.now_us, choose.choice([None, [key]])))
    return operations


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limits", [Limits(concurrency=3), Limits(concurrency_per_key=2, concurrency=5)])
def test_the_limit_holds_whatever_meets(nodes: Nodes, limits: Limits, seed: int) -> None:
    choose = random.Random(seed)
    one, two = nodes.flows
    limit(one, limits)

    def check() -> int:
        runs = open_runs(one)
        keys = [one.store.present(run).key for run in runs]
        assert len(runs) <= (limits.concurrency or 100)
        if limits.concurrency_per_key is not None:
            assert all(keys.count(key) <= limits.concurrency_per_key for key in keys)
        return len(runs)

    for _ in range(30):
        nodes.concurrently(*((flows, group(flows, choose)) for flows in (one, two)))
        check()
    for _ in range(200):
        for run in open_runs(one)[:1]:
            one.terminate(Key(run=run))
        fill(two)
        if not check():
            break
    assert open_runs(one) == []
    assert [job.id for job in one.store.list() if job.function == b"order" and job.state <= State.PENDING] == []
