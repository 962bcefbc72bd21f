from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mainspring.errors import UsageError
from mainspring.schedules import rules
from mainspring.schedules.model import At, Cause, Cron, Every, Fire, FireState, Overlap, Reason, Schedule, Trigger
from mainspring.schedules.parents import Graph, Join, arrive

from .zones import DAY, HOUR, at

if TYPE_CHECKING:
    from random import Random

    from mainspring.schedules.parents import Spread

NOON = at("2030-01-01T12:00")
DAILY = Cron("0 12 * * *")


def root(name: str, trigger: Trigger = DAILY, *, wait: bool = False, timezone: str = "UTC") -> Schedule:
    return Schedule(name=name, function=b"f", trigger=trigger, wait_for_children=wait, timezone=timezone)


def child(name: str, *parents: str, wait: bool = False, overlap: Overlap = Overlap.ALLOW) -> Schedule:
    return Schedule(name=name, function=b"f", parents=parents, wait_for_children=wait, overlap=overlap)


def fired(name: str, fire_us: int = NOON, by_hand: str = "") -> Fire:
    return Fire(schedule=name, fire_us=fire_us, state=FireState.FIRED, root=by_hand)


def names(found: list[Schedule]) -> list[str]:
    return [schedule.name for schedule in found]


DIAMOND = [root("r"), child("a", "r"), child("b", "r"), child("c", "a", "b"), child("d", "c")]


# ---- registration ----


def test_a_cycle_is_refused_with_its_names() -> None:
    with pytest.raises(
        UsageError, match=r"in a cycle: (a after b after c after a|b after c after a after b|c after a after b after c)"
    ):
        Graph([root("r"), child("a", "r", "b"), child("b", "c"), child("c", "a")])


def test_a_schedule_is_not_its_own_parent() -> None:
    with pytest.raises(UsageError, match="cycle: a after a"):
        Graph([child("a", "a")])


def test_an_unknown_parent_is_refused_and_does_no_harm() -> None:
    graph = Graph([root("r"), child("a", "r", "gone"), child("b", "a")])
    with pytest.raises(UsageError, match="schedule 'a' has the parent 'gone', which does not exist"):
        graph.check(NOON)
    assert graph.spread(fired("r"), {}, NOON, succeeded=True) == ([], [], [])
    assert graph.spread(fired("r"), {}, NOON, succeeded=False) == ([], [], [])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (root("x", Cron("@hourly")), root("y", Cron("30 12 * * *"))),
        (root("x", Cron("0 2 * * *")), root("y", Cron("0 2 * * *"), timezone="Asia/Tokyo")),
        (root("x", At(NOON)), root("y", At(NOON + 1))),
        (root("x", At(NOON - DAY)), root("y", Cron("0 12 * * *"))),
    ],
)
def test_roots_without_a_common_fire_time_are_refused(one: Schedule, other: Schedule) -> None:
    with pytest.raises(
        UsageError, match=r"schedule 'c' waits for parents that never fire at the same time: x \((cron|at) .*y \("
    ):
        Graph([one, other, child("c", "x", "y")]).check(NOON)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (root("x"), root("y")),
        (root("x", Every(HOUR)), root("y", Every(HOUR))),
        (root("x", Cron("@hourly")), root("y", Cron("0 12 * * *"))),
        (root("x", Every(5 * HOUR)), root("y", Cron("0 3 29 2 *"))),
        (root("x", Cron("* * * * * *")), root("y", At(NOON + 40 * DAY))),
        (root("x", Cron("0 2 * * *")), root("y", Cron("0 11 * * *"), timezone="Asia/Tokyo")),
        (root("x", Cron("0 1 * * *")), root("y", Cron("0 2 * * *"), timezone="Europe/Berlin")),
    ],
)
def test_roots_with_a_common_fire_time_are_accepted(one: Schedule, other: Schedule) -> None:
    Graph([one, other, child("c", "x", "y")]).check(NOON)


def test_only_schedules_that_a_change_concerns_are_checked() -> None:
    """The end of a root makes a child invalid, and this does not block changes of other schedules."""
    ended = Graph([root("x", At(NOON)), root("y", At(NOON)), child("c", "x", "y"), child("d", "c"), root("other")])
    ended.check(NOON)
    mismatched = Graph(
        [root("x", At(NOON - 1)), root("y", At(NOON)), child("c", "x", "y"), child("d", "c"), root("other")]
    )
    mismatched.check(NOON, ["other"])
    mismatched.check(NOON, [])
    for name in ("x", "y", "c", "d"):
        with pytest.raises(UsageError, match="never fire at the same time"):
            mismatched.check(NOON, [name])


def test_a_removed_parent_names_its_children() -> None:
    graph = Graph([child("c", "gone"), child("d", "gone")])
    with pytest.raises(UsageError, match="schedule 'gone' is a parent of 'c', 'd': remove its children first"):
        graph.check(NOON, ["gone"])
    with pytest.raises(UsageError, match="schedule 'c' has the parent 'gone', which does not exist"):
        graph.check(NOON, ["c"])


def test_relations() -> None:
    graph = Graph(reversed(DIAMOND))
    assert sorted(names(graph.children("r"))) == ["a", "b"]
    order = names(graph.descendants("r"))
    assert sorted(order) == ["a", "b", "c", "d"]
    assert order[2:] == ["c", "d"]
    assert graph.ancestors("d")[0] == "r"
    assert graph.ancestors("d")[-1] == "c"
    assert graph.roots("d") == graph.roots("r") == {"r"}
    assert names(graph.children("nobody")) == []


# ---- occasions ----


def test_a_child_of_two_roots_has_their_common_occasions() -> None:
    graph = Graph([root("h", Cron("@hourly")), root("d"), child("c", "h", "d"), child("e", "h"), child("f", "e", "c")])
    assert names(graph.children_of(fired("h", NOON))) == ["c", "e"]
    assert names(graph.children_of(fired("h", NOON + HOUR))) == ["e"]
    assert not graph.takes_part("f", fired("h", NOON + HOUR))
    assert graph.joins(fired("h", NOON + HOUR), succeeded=False) == []
    assert graph.joins(fired("h", NOON), succeeded=False) == ["c", "f"]


def test_a_child_takes_part_in_an_occasion_by_hand_if_all_its_parents_do() -> None:
    graph = Graph([*DIAMOND, child("x", "a")])
    assert [one.name for one in DIAMOND if graph.takes_part(one.name, fired("r", 5, by_hand="r"))] == [
        "r",
        "a",
        "b",
        "c",
        "d",
    ]
    assert [name for name in "rabcdx" if graph.takes_part(name, fired("a", 5, by_hand="a"))] == ["a", "x"]
    assert names(graph.children_of(fired("a", 5, by_hand="a"))) == ["x"]


# ---- joins ----


@settings(deadline=None)
@given(st.permutations(range(4)), st.lists(st.booleans(), min_size=4, max_size=4))
def test_a_join_is_ready_or_stopped_exactly_once(order: list[int], successes: list[bool]) -> None:
    schedule, join, ready, stops = child("c", "p0", "p1", "p2", "p3"), None, 0, 0
    for parent in order:
        join, first_stop = arrive(join, schedule, NOON, succeeded=successes[parent])
        stops += first_stop
        ready += join.left == 0 and not join.stopped
    assert (ready, stops) == ((1, 0) if all(successes) else (0, 1))


def test_two_parents() -> None:
    graph = Graph(DIAMOND)
    assert graph.joins(fired("a"), succeeded=True) == ["c"]
    first = graph.spread(fired("a"), {}, NOON, succeeded=True)
    assert tuple(first) == ([], [], [Join("c", NOON, 1)])
    second = graph.spread(fired("b"), {"c": first.joins[0]}, NOON, succeeded=True)
    assert (names(second.ready), second.stopped, second.joins) == (["c"], [], [Join("c", NOON, 0)])


def test_a_failed_parent_stops_its_descendants() -> None:
    graph = Graph(DIAMOND)
    spread = graph.spread(fired("a"), {}, NOON + 5, succeeded=False)
    assert spread.ready == []
    assert [(row.schedule, row.parent) for row in spread.stopped] == [("c", "a"), ("d", "c")]
    for row in spread.stopped:
        assert (row.fire_us, row.state, row.reason, row.cause) == (NOON, FireState.SKIPPED, Reason.PARENT, Cause.PARENT)
        assert (row.decided_us, row.finished) == (NOON + 5, True)
    assert spread.joins == [Join("c", NOON, 1, stopped=True)]
    late = graph.spread(fired("b"), {"c": spread.joins[0]}, NOON, succeeded=True)
    assert late == ([], [], [Join("c", NOON, 0, stopped=True)])


def test_a_root_that_is_skipped_stops_all_of_its_descendants() -> None:
    spread = Graph(DIAMOND).spread(fired("r"), {}, NOON, succeeded=False)
    assert [row.schedule for row in spread.stopped] == ["a", "b", "c", "d"]
    assert spread.joins == [Join("c", NOON, 0, stopped=True)]
    assert Graph(DIAMOND).joins(fired("r"), succeeded=False) == ["c"]


# ---- whole occasions, in any order ----


class Occasion:
    """Runs one occasion as a fleet does: settlements in any order, each with the joins stored by then."""

    def __init__(self, graph: Graph, outcomes: dict[str, bool], roots: list[str], by_hand: str = "") -> None:
        self.graph, self.outcomes = graph, outcomes
        self.rows: dict[str, Fire] = {}
        self.joins: dict[str, Join] = {}
        for name in roots:
            self.start(fired(name, by_hand=by_hand))

    def start(self, row: Fire) -> None:
        assert row.schedule not in self.rows, "a second row"
        done = {name for name, one in self.rows.items() if one.finished}
        self.rows[row.schedule] = self.graph.with_children(row, done)

    def end(self, name: str) -> None:
        row = self.rows[name]
        assert row.state is FireState.FIRED
        good = self.outcomes[name]
        row = self.rows[name] = replace(row, outcome="succeeded" if good else "failed")
        locked = self.graph.joins(row, succeeded=good)
        spread = self.graph.spread(
            row, {one: self.joins[one] for one in locked if one in self.joins}, NOON, succeeded=good
        )
        assert {join.child for join in spread.joins} <= set(locked)
        self.apply(row, spread)
        if row.finished:
            self.finish(row)

    def apply(self, row: Fire, spread: Spread) -> None:
        self.joins |= {join.child: join for join in spread.joins}
        for stopped in spread.stopped:
            assert stopped.schedule not in self.rows, "a second row"
            self.rows[stopped.schedule] = stopped
        for ready in spread.ready:
            state = rules.created(ready, NOON)
            (fire,) = rules.decide_child(ready, state, row, NOON, live=False).fires
            self.start(fire)
        for stopped in spread.stopped:
            self.finish(stopped)

    def finish(self, row: Fire) -> None:
        ancestors = {name: self.rows[name] for name in self.graph.ancestors(row.schedule) if name in self.rows}
        self.rows |= {one.schedule: one for one in self.graph.finish(row, ancestors)}

    def run(self, chance: Random) -> None:
        while running := sorted(row.schedule for row in self.rows.values() if row.live and not row.outcome):
            self.end(chance.choice(running))


@st.composite
def graphs(draw: st.DrawFn) -> list[Schedule]:
    """Draw up to eight schedules; the first ones are roots with one trigger."""
    number = draw(st.integers(1, 8))
    schedules = list[Schedule]()
    for index in range(number):
        chosen = draw(st.sets(st.sampled_from(range(index)), max_size=3)) if index else set()
        wait = draw(st.booleans())
        parents = tuple(f"s{parent}" for parent in sorted(chosen))
        schedules.append(child(f"s{index}", *parents, wait=wait) if parents else root(f"s{index}", wait=wait))
    return draw(st.permutations(schedules))


@settings(max_examples=200, deadline=None)
@given(graphs(), st.randoms(use_true_random=False), st.data())
def test_each_schedule_of_an_occasion_gets_one_row(
    schedules: list[Schedule], chance: Random, data: st.DataObject
) -> None:
    graph = Graph(schedules)
    graph.check(NOON)
    outcomes = {one.name: data.draw(st.sampled_from([True, True, False])) for one in schedules}
    occasion = Occasion(graph, outcomes, [one.name for one in schedules if not one.parents])
    occasion.run(chance)
    assert set(occasion.rows) == set(outcomes)
    for schedule in schedules:
        row = occasion.rows[schedule.name]
        runs = all(occasion.rows[parent].outcome == "succeeded" for parent in schedule.parents)
        assert row.state is (FireState.FIRED if runs else FireState.SKIPPED)
        assert row.fire_us == NOON
        assert row.finished, "it waits for children that are all finished"
        assert row.children_left == 0
        assert not schedule.parents or row.parent in schedule.parents
    assert all(join.left == 0 for join in occasion.joins.values())


@settings(max_examples=100, deadline=None)
@given(graphs(), st.randoms(use_true_random=False), st.data())
def test_an_occasion_by_hand_affects_only_its_participants(
    schedules: list[Schedule], chance: Random, data: st.DataObject
) -> None:
    graph = Graph(schedules)
    outcomes = {one.name: data.draw(st.sampled_from([True, True, False])) for one in schedules}
    begin = data.draw(st.sampled_from(sorted(outcomes)))
    occasion = Occasion(graph, outcomes, [begin], by_hand=begin)
    occasion.run(chance)
    expected = {name for name in outcomes if graph.takes_part(name, fired(begin, by_hand=begin))}
    assert set(occasion.rows) == expected
    assert all(row.root == begin and row.finished for row in occasion.rows.values())


# ---- parents that wait for their children ----


def test_a_parent_waits_for_its_children_if_configured() -> None:
    graph = Graph([root("r", wait=True), child("a", "r", wait=True), child("b", "a"), child("c", "r")])
    occasion = Occasion(graph, dict.fromkeys("rabc", True), ["r"])
    assert occasion.rows["r"].children_left == 2
    for name, unfinished in (("r", "r"), ("c", "r"), ("a", "r"), ("b", "")):
        occasion.end(name)
        assert occasion.rows["r"].live is bool(unfinished)
    assert all(row.finished for row in occasion.rows.values())


def test_a_parent_that_does_not_wait_is_finished_when_it_has_ended() -> None:
    graph = Graph([root("r"), child("a", "r")])
    occasion = Occasion(graph, dict.fromkeys("ra", True), ["r"])
    occasion.end("r")
    assert occasion.rows["r"].finished
    assert not occasion.rows["a"].finished


def test_a_failed_parent_is_finished_at_once_because_its_children_are_skipped() -> None:
    graph = Graph([root("r", wait=True), child("a", "r", wait=True), child("b", "a")])
    occasion = Occasion(graph, {"r": False}, ["r"])
    occasion.end("r")
    assert occasion.rows["r"].finished
    assert [occasion.rows[name].reason for name in "ab"] == [Reason.PARENT, Reason.PARENT]
