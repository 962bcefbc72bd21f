"""Requests get all slots or none, in their order, and the best choice of items."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import UsageError
from mainspring.resources import holds
from mainspring.resources.holds import (
    AGEING_US,
    Hold,
    Holder,
    HolderKind,
    Item,
    Line,
    Request,
    Resource,
    Waits,
    allot,
    counted,
    decide,
    named,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

LICENCES = {"l": counted(5)}
PRINTERS = named({"p1": {"colour"}, "p2": (), "p3": {"colour", "large"}})
COLOUR = Line("p", 1, ("colour",))
LABELS = st.lists(st.sampled_from("abc"), unique=True).map(lambda some: tuple(sorted(some)))
ITEMS = st.lists(st.builds(Item, st.just(""), st.integers(0, 3), LABELS), max_size=3).map(
    lambda some: tuple(Item(f"i{number}", one.slots, one.labels) for number, one in enumerate(some))
)
LINES = st.lists(st.builds(Line, st.just("r"), st.integers(1, 3), LABELS), min_size=1, max_size=3)


def asks(number: int, *lines: Line, priority: int = 1, since: int | None = None) -> Request:
    """Return a request of a job; later ones have higher numbers."""
    return Request(holder(number), 1, lines, priority, number if since is None else since)


def holder(number: int) -> Holder:
    """Return a job."""
    return Holder(HolderKind.LEASE, number, 1)


def held(number: int, resource: str, item: str = "", units: int = 1) -> Hold:
    """Return a hold of a job."""
    return Hold(resource, item, holder(number), 1, units, number, 0)


def most_units(items: Sequence[Item], lines: Sequence[Line]) -> int:
    """Return how many units some choice of items serves, by trying all choices for each unit."""
    units = [line for line in lines for _ in range(line.units)]
    best = 0
    for choice in product([None, *range(len(items))], repeat=len(units)):
        taken = [choice.count(number) for number in range(len(items))]
        fits = all(
            number is None or {*line.labels} <= {*items[number].labels}
            for line, number in zip(units, choice, strict=True)
        )
        if fits and all(number <= item.slots for number, item in zip(taken, items, strict=True)):
            best = max(best, sum(taken))
    return best


@given(ITEMS, LINES)
def test_as_many_slots_are_found_as_any_choice_of_items_has(items: tuple[Item, ...], lines: list[Line]) -> None:
    resources = {"r": Resource(items)}
    found = allot(resources, holds.free_slots(resources, ()), lines)
    number = sum(found.units.values())
    wanted = sum(line.units for line in lines)
    if wanted <= 5:
        assert number == most_units(items, lines)
    assert found.lacking == (() if number == wanted else ("r",))
    assert all(0 < units <= next(i.slots for i in items if i.name == item) for (_, item), units in found.units.items())


def test_items_with_labels_stay_for_those_that_need_them() -> None:
    verdicts = decide({"p": PRINTERS}, (), [asks(1, Line("p")), asks(2, COLOUR), asks(3, Line("p", 1, ("large",)))])
    assert verdicts == {holder(1): {("p", "p2"): 1}, holder(2): {("p", "p1"): 1}, holder(3): {("p", "p3"): 1}}


def test_an_item_changes_its_line_if_only_so_all_lines_are_served() -> None:
    lines = (Line("p", 1, ("colour",)), Line("p", 1, ("large",)), Line("p"))
    for order in (lines, lines[::-1]):
        assert decide({"p": PRINTERS}, (), [asks(1, *order)]) == {
            holder(1): {("p", "p1"): 1, ("p", "p2"): 1, ("p", "p3"): 1}
        }


def test_all_resources_are_granted_or_none() -> None:
    resources = {**LICENCES, "p": PRINTERS}
    taken = [held(9, "p", "p1"), held(8, "p", "p3")]
    wanted = asks(1, Line("l", 2), COLOUR)
    assert decide(resources, taken, [wanted]) == {holder(1): Waits(("p",), ())}
    assert decide(resources, taken[:1], [wanted]) == {holder(1): {("l", ""): 2, ("p", "p3"): 1}}


def test_small_requests_do_not_starve_a_large_one() -> None:
    taken = [held(8, "l", units=1), held(9, "l", units=1)]
    verdicts = decide(LICENCES, taken, [asks(1, Line("l", 4)), asks(2, Line("l"))])
    assert verdicts == {holder(1): Waits(("l",), ()), holder(2): Waits(("l",), (holder(1),))}


def test_requests_for_one_resource_do_not_starve_one_for_two() -> None:
    resources = {"a": counted(1), "b": counted(1)}
    both = asks(1, Line("a"), Line("b"))
    for taken, other in (("a", "b"), ("b", "a")):
        verdicts = decide(resources, [held(9, taken)], [both, asks(2, Line(other))])
        assert verdicts == {holder(1): Waits((taken,), ()), holder(2): Waits((other,), (holder(1),))}


def test_slots_that_an_earlier_request_does_not_need_are_not_idle() -> None:
    resources = {**LICENCES, "p": PRINTERS}
    taken = [held(9, "p", "p1"), held(8, "p", "p3")]
    verdicts = decide(resources, taken, [asks(1, Line("l", 2), COLOUR), asks(2, Line("l", 3), Line("p"))])
    assert verdicts[holder(2)] == {("l", ""): 3, ("p", "p2"): 1}


def test_a_request_that_nothing_can_serve_reserves_nothing() -> None:
    verdicts = decide(LICENCES, (), [asks(1, Line("l", 6)), asks(2, Line("none")), asks(3, Line("l", 5))])
    assert verdicts[holder(1)] == Waits(("l",), (), impossible=True)
    assert verdicts[holder(2)] == Waits(("none",), ()), "this decision may not know the resource"
    assert verdicts[holder(3)] == {("l", ""): 5}
    assert decide({"none": Resource()}, (), [asks(2, Line("none"))]) == {
        holder(2): Waits(("none",), (), impossible=True)
    }


def test_a_request_for_a_resource_of_another_decision_reserves_its_part() -> None:
    verdicts = decide({"a": counted(1)}, (), [asks(1, Line("a"), Line("b")), asks(2, Line("a"))])
    assert verdicts == {holder(1): Waits(("b",), ()), holder(2): Waits(("a",), (holder(1),))}


def test_higher_priorities_go_first_until_lower_ones_are_older_by_a_minute() -> None:
    one = {"l": counted(1)}
    for ahead, first in ((AGEING_US - 1, 2), (AGEING_US + 1, 1)):
        low, high = asks(1, Line("l"), priority=1, since=0), asks(2, Line("l"), priority=0, since=ahead)
        verdicts = decide(one, (), [low, high])
        assert [key.id for key, verdict in verdicts.items() if isinstance(verdict, dict)] == [first]


def test_draining_items_and_a_lowered_total_give_nothing() -> None:
    draining = Resource((Item("p1", 1, (), draining=True), Item("p2")))
    verdicts = decide({"p": draining}, (), [asks(1, Line("p")), asks(2, Line("p"))])
    assert verdicts == {holder(1): {("p", "p2"): 1}, holder(2): Waits(("p",), (holder(1),))}
    assert decide({"p": draining}, (), [asks(1, Line("p", 2))])[holder(1)] == Waits(("p",), (), impossible=True)
    taken = [held(9, "l", units=4)]
    assert decide({"l": counted(3)}, taken, [asks(1, Line("l"))]) == {holder(1): Waits(("l",), ())}
    assert decide({"p": draining}, [held(9, "p", "gone")], [asks(1, Line("p"))]) == {holder(1): {("p", "p2"): 1}}


@pytest.mark.parametrize(
    "resource",
    [
        Resource(),
        counted(-1),
        counted(holds.MAX_SLOTS + 1),
        named({"": ()}),
        named({"a\n": ()}),
        named({"a": {"x" * (holds.MAX_NAME + 1)}}),
        named({"a": {str(number) for number in range(holds.MAX_LABELS + 1)}}),
        named({str(number): () for number in range(holds.MAX_ITEMS + 1)}),
        Resource((Item("a"), Item("a"))),
        Resource((Item("a"),), counted=True),
    ],
)
def test_invalid_resources_are_refused(resource: Resource) -> None:
    with pytest.raises(UsageError):
        holds.check_resource(resource)


@pytest.mark.parametrize(
    "lines", [[], [Line("a", 0)], [Line("a", holds.MAX_SLOTS + 1)], [Line("a", 1, ("",))], [Line("a")] * 11]
)
def test_invalid_requests_are_refused(lines: list[Line]) -> None:
    with pytest.raises(UsageError):
        holds.check_lines(lines)


def test_the_largest_values_are_allowed() -> None:
    holds.check_resource(counted(holds.MAX_SLOTS))
    holds.check_resource(counted(0))
    holds.check_resource(named({str(number): {"a"} for number in range(holds.MAX_ITEMS)}))
    holds.check_lines([Line("a", holds.MAX_SLOTS, ("b",))] * holds.MAX_LINES)
