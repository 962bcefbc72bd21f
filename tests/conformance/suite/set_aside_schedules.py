"""Schedules that a node cannot decide: they are set aside, and all others go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.errors import ConflictError
from mainspring.schedules import store as ops
from mainspring.schedules.model import Cron, Every, Reason, Schedule
from mainspring.schedules.reconcile import fault_of
from tests.conformance.suite.scheduling import MINUTE, START, Scheduling

if TYPE_CHECKING:
    from mainspring.schedules.model import Overlap

ELSEWHERE = "Site/Elsewhere"
"""A time zone that only another machine has."""
NEWER: Any = "burst"
"""A policy of a newer version."""


def plant(s: Scheduling, name: str, **fields: Any) -> Schedule:
    """Store a schedule that another node has checked, and this one cannot decide."""
    schedule = Schedule(name=name, function=name.encode(), **fields)
    saved = s.save(ops.Change("put", name, 0, schedule, first_us=None if schedule.parents else START + MINUTE))
    assert saved.error is None
    return schedule


def plant_zone(s: Scheduling, name: str, **fields: Any) -> Schedule:
    """Store a schedule in a time zone that this machine does not have."""
    return plant(s, name, trigger=Cron("* * * * *"), timezone=ELSEWHERE, **fields)


def plant_newer(s: Scheduling, name: str) -> Schedule:
    """Store a schedule with a policy of a newer version."""
    overlap: Overlap = NEWER
    schedule = plant(s, name, trigger=Every(MINUTE), overlap=overlap)
    if not s.stored(name).unread:
        pytest.skip("this store keeps values as they are, so it needs no version to read them")
    return schedule


class SettingAside:
    """Tests of schedules that cannot be decided."""

    def test_an_unknown_zone_stops_its_own_schedule_only(self, s: Scheduling) -> None:
        s.add("a")
        plant_zone(s, "b")
        plant(s, "c", trigger=Cron("* * * * never"))
        s.add("d")
        s.at(1)
        (fired,) = s.group(s.firing())
        assert (fired["a"].won, fired["d"].won) == (True, True)
        assert (fired["b"].won, fired["b"].stored) == (False, None)
        assert ELSEWHERE in fired["b"].fault
        assert "day of the week" in fired["c"].fault
        assert [one.name for one, _ in s.due().due] == ["b", "c"], "they are tried again"
        assert (len(s.claim("a")), len(s.claim("d"))) == (1, 1)
        listed = {one.schedule.name: fault_of(one) for one in s.read()}
        assert [name for name, fault in listed.items() if fault] == ["b", "c"]
        self._release(s, "b", "c")

    def test_a_policy_of_a_newer_version_stops_its_own_schedule_only(self, s: Scheduling) -> None:
        s.add("a")
        plant_newer(s, "b")
        s.at(1)
        (fired,) = s.group(s.firing())
        assert fired["a"].won
        assert NEWER in fired["b"].fault or "overlap" in fired["b"].fault
        stored = s.stored("b")
        assert (stored.schedule.trigger, stored.state.next_us) == (Every(MINUTE), START + MINUTE)
        assert isinstance(s.change("pause", "b").error, ConflictError), "the write would lose the policy"
        assert s.stored("b").unread
        assert s.repair() == 0
        self._release(s, "b")

    def test_a_request_that_names_it_is_answered(self, s: Scheduling) -> None:
        plant_zone(s, "a")
        s.at(2)
        (refused,) = s.group(ops.TriggerSchedule("a", s.now_us))
        assert isinstance(refused, ops.Refused)
        assert ELSEWHERE in str(refused.error)
        assert s.change("pause", "a").error is None
        assert s.stored("a").state.paused
        assert s.change("rewind", "a").error is None
        assert s.change("remove", "a").error is None
        assert s.read() == []

    def test_it_goes_on_once_it_is_replaced(self, s: Scheduling) -> None:
        plant_zone(s, "a")
        plant_newer(s, "b")
        s.at(3)
        for name in ("a", "b"):
            s.put(Schedule(name=name, function=name.encode(), trigger=Every(MINUTE)))
            assert fault_of(s.stored(name)) == ""
            assert s.fire(name)[name].won
            s.run(name)
        assert s.stored("a").state.last_us == s.stored("b").state.last_us == START + 3 * MINUTE
        assert s.outcomes("b") == ["misfire", "misfire", "succeeded"], "its times are the same: none is lost"

    def test_it_keeps_its_relatives_going(self, s: Scheduling) -> None:
        s.add("root")
        plant(s, "child", parents=("root",), exclude=("2030-01-01",), timezone=ELSEWHERE)
        s.add("grandchild", parents=("child",))
        plant_zone(s, "other root")
        s.at(0)
        s.fire("root")
        s.run("root")
        (missed,) = s.history("child")
        assert missed.reason is Reason.MISFIRE
        assert ELSEWHERE.encode() in missed.error
        assert s.outcomes("grandchild") == ["parent"]
        self._release(s, "child", "other root")

    @staticmethod
    def _release(s: Scheduling, *names: str) -> None:
        """Remove them: the checks at the end read all histories."""
        for name in reversed(names):
            for child in [one.schedule.name for one in s.read() if name in one.schedule.parents]:
                assert s.change("remove", child).error is None
            assert s.change("remove", name).error is None
