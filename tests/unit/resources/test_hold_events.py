"""The events of resources: what operations have caused, and what a node's readers get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from tests.unit.api.a_node import run
from tests.unit.faces.rest.a_server import whole_node

from mainspring.access.caller import Act
from mainspring.api.events import END, ListEvents
from mainspring.api.resources import DrainResource, FreeResource, HoldResource, SetResource
from mainspring.event_log import types
from mainspring.resources.definition_store import DeclaredResource, SaveResource, StoredResource
from mainspring.resources.hold_store import REFUSED, Asked, AskHolds, Got, NoteTaken
from mainspring.resources.holds import Hold, Holder, HolderKind, Line, Request, Waits, counted, named

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.event_log.interests import NewEvent

ACT = Act("resources.set", "ann", reason="because")
JOB = Request(Holder(HolderKind.LEASE, 7, 1), 1, (Line("l", 2),), 1, 5, b"f")
PERSON = Request(Holder(HolderKind.PERSON, 9, 0), 1, (Line("l", 2),), 1, 5, until_us=50)


def brief(events: Iterable[NewEvent]) -> list[Any]:
    """Return what events say."""
    return [(one.type, one.subject, one.function, one.job, one.fields.slots, one.fields.by) for one in events]  # type: ignore[attr-defined] # of resources


def declared(total: int, at: int) -> DeclaredResource:
    """Return a declaration."""
    return DeclaredResource(counted(total), first_us=at, last_us=at)


PRINTERS = named({"p1": (), "p2": ()})
OLD = StoredResource("l", declared=(declared(1, 1),), version=3)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, StoredResource("l", declared=(declared(1, 1),)), ["resource.changed"]),
        (OLD, replace(OLD, declared=(declared(1, 1), declared(2, 2))), ["resource.changed"]),
        (OLD, replace(OLD, declared=(declared(1, 9),)), []),
        (OLD, replace(OLD, commanded=counted(1)), []),
        (OLD, replace(OLD, commanded=PRINTERS), ["resource.changed"]),
        (OLD, replace(OLD, draining=("",)), ["resource.drained"]),
        (replace(OLD, draining=("p1",)), replace(OLD, draining=("p2",)), ["resource.drained", "resource.opened"]),
        (replace(OLD, draining=("p1",)), replace(OLD, draining=("p1",)), []),
    ],
)
def test_a_resource_that_has_changed_has_events(
    before: StoredResource | None, after: StoredResource, expected: list[str]
) -> None:
    operation = SaveResource(after, before, act=ACT)
    written = replace(after, version=after.version + 1)
    assert [one.type for one in operation.caused(written)] == expected
    assert list(operation.caused(replace(written, version=written.version + 1))) == [], "another node was first"


def test_people_and_late_jobs_have_events_of_holds() -> None:
    hold = Hold("l", "", PERSON.holder, 1, 2, 8, 5, 50)
    operation = AskHolds([PERSON, JOB], 5, act=ACT)
    late = Waits(("l", "m"), (), over=True)
    assert brief(operation.caused(Asked([Got((hold,)), late], set()))) == [
        ("resource.held", "l", "", 0, 2, "ann"),
        ("resource.denied", "l", "f", 7, 0, ""),
        ("resource.denied", "m", "f", 7, 0, ""),
    ]
    granted = Got((hold._replace(holder=JOB.holder),))
    assert list(operation.caused(Asked([REFUSED, granted], set()))) == [], "holds of jobs have none"
    assert list(operation.caused(Asked([Waits(("l",), ()), Waits(("l",), ())], set()))) == []


def test_slots_of_people_that_are_given_back_have_an_event() -> None:
    operation = AskHolds([], 5, [(PERSON.holder, 1), (JOB.holder, 1)], act=ACT)
    assert brief(operation.caused(Asked([], {"l"}))) == [("resource.freed", "l", "", 0, 0, "ann")]
    assert list(operation.caused(Asked([], set()))) == []


def test_slots_that_are_taken_away_have_an_event() -> None:
    assert brief(NoteTaken("l", JOB, 2, act=ACT).caused(None)) == [("resource.taken", "l", "f", 7, 2, "ann")]


def test_readers_get_the_events_of_resources() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            api = built.api
            place = (await api.call(ListEvents(type=["resource.*"], after=END))).last
            await api.call(SetResource("printer", items={"p1": ["colour"], "p2": []}))
            await api.call(DrainResource("printer", item="p2", reason="paper jam"))
            held = await api.call(HoldResource("printer", duration=60.0))
            await api.call(FreeResource("printer", held.holder))
            await api.call(DrainResource("printer", undo=True))
            found = (await api.call(ListEvents(type=["resource.*"], after=place))).items
            assert [one.type for one in found] == [
                types.RESOURCE_CHANGED,
                types.RESOURCE_DRAINED,
                types.RESOURCE_HELD,
                types.RESOURCE_FREED,
                types.RESOURCE_OPENED,
            ]
            assert {one.subject for one in found} == {"printer"}
            assert found[0].data["items"] == ("p1", "p2")
            assert (found[1].data["items"], found[1].data["reason"]) == (("p2",), "paper jam")
            assert found[2].data["hold"] == found[3].data["hold"] == held.holder

    run(test())
