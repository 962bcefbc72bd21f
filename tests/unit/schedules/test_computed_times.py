from __future__ import annotations

from msgspec.structs import replace

from mainspring.schedules.catalogue import OVERHEAD, ComputedTimes
from mainspring.schedules.model import Cron, Every, Schedule

ONE = Schedule(name="a", function=b"f", trigger=Every(10))


def test_later_parts_of_a_span_are_found() -> None:
    computed = ComputedTimes()
    assert computed.find(ONE, 5, 45) is None
    computed.keep(ONE, 5, 45, [10, 20, 30, 40])
    assert list(computed.find(ONE, 5, 45) or ()) == [10, 20, 30, 40]
    assert list(computed.find(ONE, 20, 45) or ()) == [30, 40]
    assert list(computed.find(ONE, 40, 45) or (1,)) == [1]
    assert computed.find(ONE, 40, 45) is not None
    assert computed.find(ONE, 4, 45) is None, "a time before the span may be missing"
    assert computed.find(ONE, 5, 46) is None


def test_only_what_the_fire_times_depend_on_tells_schedules_apart() -> None:
    computed = ComputedTimes()
    computed.keep(ONE, 0, 45, [10])
    assert computed.find(replace(ONE, name="b", function=b"g", jitter=1.0), 0, 45) is not None
    for other in (
        replace(ONE, trigger=Every(20)),
        replace(ONE, trigger=Cron("* * * * *")),
        replace(ONE, timezone="Europe/Berlin"),
        replace(ONE, start_us=1),
        replace(ONE, end_us=1),
        replace(ONE, exclude=("2030-12-24",)),
    ):
        assert computed.find(other, 0, 45) is None


def test_the_spans_that_were_used_last_are_kept() -> None:
    computed = ComputedTimes(2 * (OVERHEAD + 3))
    for until_us in (101, 102):
        computed.keep(ONE, 0, until_us, [1, 2, 3])
    assert computed.find(ONE, 0, 101) is not None
    computed.keep(ONE, 0, 103, [1])
    computed.keep(ONE, 0, 103, [1, 2, 3])
    assert [computed.find(ONE, 0, until_us) is None for until_us in (101, 102, 103)] == [False, True, False]
