from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.clock import time_of
from mainspring.errors import UsageError
from mainspring.jobs.model import Retry
from mainspring.schedules.model import At, Cron, Every, Overlap, Schedule
from mainspring.schedules.specification import Specification, specify

times = st.integers(0, 4_000_000_000_000_000)
durations = st.floats(0, 1e6)
triggers = st.one_of(
    st.sampled_from(["* * * * *", "@daily", "*/5 * * * * *"]).map(Cron),
    st.integers(100_000, 10**12).map(Every),
    times.map(At),
)
schedules = st.builds(
    Schedule,
    name=st.from_regex(r"[a-z]{1,8}", fullmatch=True),
    function=st.text(st.characters(codec="utf-8", exclude_characters="\0\x1f"), min_size=1, max_size=5).map(str.encode),
    args=st.binary(max_size=20),
    trigger=triggers,
    timezone=st.sampled_from(["UTC", "Europe/Berlin"]),
    jitter=durations,
    exclude=st.sampled_from([(), ("2030-12-24", "2031-01-01")]),
    misfire=st.sampled_from(["skip", "once", "all", 0, 7]),
    misfire_after=durations,
    overlap=st.sampled_from(Overlap),
    wait_for_children=st.booleans(),
    priority=st.integers(0, 2),
    retry=st.sampled_from([None, Retry(max_attempts=3)]),
    timeout=st.none() | durations.filter(bool),
    unique=st.sampled_from([b"", b"u"]),
    expires=st.none() | durations,
)


@given(schedules)
def test_a_specification_converts_back_to_its_schedule(schedule: Schedule) -> None:
    text = msgspec.json.encode(specify(schedule))
    assert msgspec.json.decode(text, type=Specification).schedule() == schedule


def test_missing_fields_have_their_defaults() -> None:
    assert Specification(name="a", every=60).schedule() == Schedule(name="a", function=b"a", trigger=Every(60_000_000))


def test_an_edit_changes_only_its_fields() -> None:
    before = Specification(
        name="a", cron="@daily", start=time_of(5_000_000), timeout=3, exclude=["2030-12-24"]
    ).schedule()
    after = Specification(name="a", timezone="Europe/Berlin", timeout=None, exclude=[]).schedule(before)
    assert (after.trigger, after.start_us, after.timezone) == (Cron("@daily"), 5_000_000, "Europe/Berlin")
    assert (after.timeout, after.exclude) == (None, ())


def test_a_trigger_replaces_parents_and_parents_a_trigger() -> None:
    root = Specification(name="a", cron="@daily", start=time_of(5_000_000)).schedule()
    child = Specification(name="a", parents=["b"]).schedule(root)
    assert (child.trigger, child.parents, child.start_us) == (None, ("b",), None)
    assert Specification(name="a", every=60).schedule(child).parents == ()


@pytest.mark.parametrize(
    ("specification", "match"),
    [
        (Specification(name="a"), "neither a trigger nor parents"),
        (Specification(name="a", cron="@daily", every=5), "exclude each other"),
        (Specification(name="a", cron="@daily", parents=["b"]), "a trigger and parents"),
        (Specification(name="a", parents=["b"], start=time_of(5_000_000)), "start and end belong to the roots"),
        (
            Specification(name="a", cron="@daily", overlap="never"),
            "overlap must be one of allow, forbid, queue, replace",
        ),
        (Specification(name="a", cron="@daily", priority="urgent"), "priority must be one of high, normal, low"),
        (Specification(name="a", at=time_of(-1)), "1970 and 9999"),
        (Specification(name="a", every=1e-300), "at least 100ms"),
    ],
)
def test_invalid_specifications_are_refused(specification: Specification, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        specification.schedule()
