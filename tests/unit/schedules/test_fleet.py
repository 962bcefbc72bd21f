"""Several nodes fire the schedules of one store."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from mainspring.jobs.store import Recover
from mainspring.schedules.model import Every, Overlap
from mainspring.schedules.service import first_in_line
from mainspring.schedules.store import Change
from mainspring.storage import agenda

from .nodes import SECOND, Node, World


@pytest.fixture
def world() -> World:
    return World(shared=True)


@pytest.fixture
def nodes(world: World) -> list[Node]:
    return [world.node(f"n{number}") for number in range(3)]


def _many(node: Node, number: int = 30) -> list[str]:
    schedule = node.add("s0", trigger=Every(10 * SECOND))
    names = [f"s{n}" for n in range(1, number)]
    node.save(*(Change("put", name, 0, replace(schedule, name=name)) for name in names))
    return ["s0", *names]


def test_each_fire_time_is_fired_once_by_one_node(world: World, nodes: list[Node]) -> None:
    names = _many(nodes[0])
    world.until(60.5)
    for name in names:
        assert world.results(name) == ["fired"] * 10
    tried = [[due.name for operation in node.fires() for due in operation.due] for node in nodes]
    assert sum(map(len, tried)) == 30 * 10, "only one node tries each"
    assert all(tried)


def test_all_are_fired_in_time_by_the_first_node(world: World, nodes: list[Node]) -> None:
    names = _many(nodes[0])
    world.until(60.5)
    # The first fire time is the moment of their creation, which the other nodes detect later.
    late = [row.decided_us - row.fire_us for name in names for row in world.rows(name)[1:]]
    assert max(late) < 0.01 * SECOND


def test_other_nodes_fire_the_schedules_of_a_dead_one(world: World, nodes: list[Node]) -> None:
    names = _many(nodes[0])
    world.until(15)
    nodes[1].alive = False
    world.until(60.9)
    for name in names:
        assert [row.fire_us for row in world.rows(name)] == [row.fire_us for row in world.rows("s0")]
        assert world.results(name) == ["fired"] * 10
        late = max(row.decided_us - row.fire_us for row in world.rows(name))
        assert late < (agenda.TAKEOVER_DELAY + 0.05) * SECOND


def test_nodes_that_disagree_about_the_first_node_fire_once(world: World, nodes: list[Node]) -> None:
    for node in nodes:
        node.is_first = lambda _: True
    names = _many(nodes[0])
    world.until(60.5)
    for name in names:
        assert world.results(name) == ["fired"] * 10
    for node in nodes:
        node.is_first = lambda _: False
    world.until(120.5)
    for name in names:
        assert world.results(name) == ["fired"] * 16


def test_a_change_at_one_node_reaches_the_others(world: World, nodes: list[Node]) -> None:
    nodes[0].add(trigger=Every(10 * SECOND))
    world.until(5)
    stored = world.stored()
    nodes[1].save(Change("put", "a", stored.state.version, replace(stored.schedule, trigger=Every(7 * SECOND))))
    before = len(world.rows())
    world.until(40)
    assert len(world.rows()) - before == 5
    nodes[2].save(Change("remove", "a"))
    world.until(60)
    assert len(world.rows()) - before == 5


def test_a_child_of_parents_on_two_nodes(world: World, nodes: list[Node]) -> None:
    hands = [node.worker(function) for node, function in zip(nodes, "fgh", strict=True)]
    nodes[0].add("a", function=b"f")
    nodes[0].add("b", function=b"g")
    nodes[0].add("c", function=b"h", parents=("a", "b"))
    world.until(2)
    for node, hand in zip(nodes[:2], hands[:2], strict=True):
        node.end(hand.given[0])
    world.until(4)
    assert len(hands[2].given) == 1
    nodes[2].end(hands[2].given[0])
    assert [(row.outcome, row.node) for row in world.rows("c")] == [("succeeded", "n2")]
    assert [row.node for row in (*world.rows("a"), *world.rows("b"))] == ["n0", "n1"]


def test_a_run_on_another_node_is_replaced(world: World, nodes: list[Node]) -> None:
    hands = nodes[0].worker()
    nodes[1].add(overlap=Overlap.REPLACE)
    world.until(65)
    assert "cancelled" in hands.stopped
    assert world.results() == ["fired", "waiting"]
    nodes[0].service.settling.cancelled(hands.given[0], "asked")
    world.until(67)
    assert world.results() == ["cancelled", "fired"]


def test_a_run_of_a_lost_node_goes_on_at_another_and_is_recorded_there(world: World, nodes: list[Node]) -> None:
    first, second = nodes[0].worker(), None
    nodes[0].add(overlap=Overlap.FORBID)
    world.until(2)
    (lost,) = first.given
    nodes[0].alive = False
    assert world.tables is not None
    world.tables.ended.add(nodes[0].term)
    nodes[1].commits.put(Recover(nodes[1].term, [nodes[0].term]), lambda _: None, lambda _: None)
    second = nodes[1].worker()
    world.until(65)
    assert world.results() == ["fired", "overlap"]
    nodes[1].end(second.given[0])
    assert second.given[0].job.id == lost.job.id
    assert [(row.outcome, row.node) for row in world.rows()] == [("succeeded", "n1"), ("", "")]


# ---- the first node ----


def test_schedules_are_spread_over_the_nodes() -> None:
    names = [f"schedule-{number}" for number in range(3000)]
    shares = Counter(first_in_line(name, (3, 7, 11)) for name in names)
    assert all(900 < number < 1100 for number in shares.values())


def test_few_schedules_move_when_a_node_joins_or_leaves() -> None:
    names = [f"schedule-{number}" for number in range(1000)]
    for name in names:
        before, after = first_in_line(name, (3, 7, 11)), first_in_line(name, (3, 7))
        assert before in {after, 11}
    assert first_in_line("a", ()) == 0


def test_other_nodes_fire_for_a_node_that_fires_nothing(world: World) -> None:
    nodes = [world.node("n0"), world.node("quiet", fires=False), world.node("n2")]
    names = _many(nodes[1])
    world.until(60.5)
    for name in names:
        assert len(world.rows(name)) == 10
        late = [row.decided_us - row.fire_us for row in world.rows(name)[1:]]
        assert max(late) < 0.5 * SECOND
    assert nodes[1].fires() == []
