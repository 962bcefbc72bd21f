from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mainspring.errors import UsageError
from mainspring.schedules import triggers

from .zones import CHANGES, DAY, HOUR, MINUTE, NAMES, ZONES, at, changes, show, us

SECOND = 1_000_000


def times(expression: str, after: str, number: int, zone: str = "UTC") -> list[str]:
    found, after_us = [], at(after, zone)
    for _ in range(number):
        following = triggers.next_of_cron(expression, ZoneInfo(zone), after_us)
        assert following is not None
        after_us = following
        found.append(show(after_us, zone))
    return found


# ---- matching times ----


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/10 * * * *", ["2030-01-01 00:10", "2030-01-01 00:20"]),
        ("30 2 * * *", ["2030-01-01 02:30", "2030-01-02 02:30"]),
        ("0 9-17/4 * * MON-FRI", ["2030-01-01 09:00", "2030-01-01 13:00", "2030-01-01 17:00", "2030-01-02 09:00"]),
        ("0 6 1,15 * *", ["2030-01-01 06:00", "2030-01-15 06:00", "2030-02-01 06:00"]),
        ("0 6 1 jan,jul *", ["2030-01-01 06:00", "2030-07-01 06:00"]),
        ("0 0 13 * FRI", ["2030-01-04 00:00", "2030-01-11 00:00", "2030-01-13 00:00"]),
        ("0 0 */2 * FRI", ["2030-01-11 00:00", "2030-01-25 00:00"]),
        ("0 0 L * *", ["2030-01-31 00:00", "2030-02-28 00:00"]),
        ("0 0 LW * *", ["2030-01-31 00:00", "2030-02-28 00:00", "2030-03-29 00:00"]),
        ("0 0 * * 5L", ["2030-01-25 00:00", "2030-02-22 00:00"]),
        ("0 0 * * MON#1", ["2030-01-07 00:00", "2030-02-04 00:00"]),
        ("0 0 29 2 *", ["2032-02-29 00:00", "2036-02-29 00:00"]),
        ("0 0 * * 7", ["2030-01-06 00:00"]),
        ("  0\t0 * *   0 ", ["2030-01-06 00:00"]),
        ("@hourly", ["2030-01-01 01:00", "2030-01-01 02:00"]),
        ("@daily", ["2030-01-02 00:00", "2030-01-03 00:00"]),
        ("@Midnight", ["2030-01-02 00:00"]),
        ("@weekly", ["2030-01-06 00:00", "2030-01-13 00:00"]),
        ("@monthly", ["2030-02-01 00:00", "2030-03-01 00:00"]),
        ("@yearly", ["2031-01-01 00:00", "2032-01-01 00:00"]),
        ("@annually", ["2031-01-01 00:00"]),
    ],
)
def test_times(expression: str, expected: list[str]) -> None:
    assert times(expression, "2030-01-01T00:00", len(expected)) == [f"{one}:00+00:00" for one in expected]


def test_the_second_is_the_first_of_six_fields() -> None:
    assert times("*/20 5 * * * *", "2030-01-01T00:00", 4) == [
        "2030-01-01 00:05:00+00:00",
        "2030-01-01 00:05:20+00:00",
        "2030-01-01 00:05:40+00:00",
        "2030-01-01 01:05:00+00:00",
    ]


def test_the_start_is_excluded_to_the_microsecond() -> None:
    noon = at("2030-01-01T12:00")
    utc = ZoneInfo("UTC")
    assert triggers.next_of_cron("0 12 * * *", utc, noon - 1) == noon
    assert triggers.next_of_cron("0 12 * * *", utc, noon) == noon + DAY
    assert triggers.next_of_cron("* * * * * *", utc, noon + 1) == noon + SECOND
    assert triggers.next_of_cron("* * * * * *", utc, noon + SECOND - 1) == noon + SECOND


def test_the_calendar_ends() -> None:
    last = at("9999-12-31T23:59:59")
    assert triggers.next_of_cron("* * * * *", ZoneInfo("UTC"), last) is None
    assert triggers.next_of_cron("* * * * *", ZoneInfo("Asia/Tokyo"), last) is None
    assert triggers.next_of_cron("* * * * *", ZoneInfo("America/New_York"), last + 10**18) is None


# ---- invalid expressions ----


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("61 * * * *", r"'61 \* \* \* \*': minute 61 does not lie within 0-59; for example '\*/10 \* \* \* \*'"),
        ("60 * * * * *", r"second 60 does not lie within 0-59; for example '\*/15 \* \* \* \* \*'"),
        ("0 24 * * *", r"hour 24 does not lie within 0-23"),
        ("0 0 0 * *", r"day of the month 0 does not lie within 1-31"),
        ("0 0 1 13 *", r"month 13 does not lie within 1-12"),
        ("0 0 * * 8", r"day of the week 8 does not lie within 0-7"),
        ("5,10-70 * * * *", r"minute 70 does not lie"),
        ("0 22-5 * * *", r"hour '22-5' runs backwards: write it as two ranges"),
        ("0 0 * * FRI-MON", r"day of the week 'FRI-MON' runs backwards"),
        ("*/0 * * * *", r"minute '\*/0' has no step"),
        ("*/x * * * *", r"minute '\*/X' has no step"),
        ("*/90 * * * *", r"minute '\*/90' steps by more than 60.*every="),
        ("0 */48 * * *", r"hour '\*/48' steps by more than 24"),
        ("0 0 1,,2 * *", r"day of the month has an empty place"),
        ("0 0 ? * MON", r"day of the month '\?': write \* instead of \?"),
        ("0 0 * * FOO", r"day of the week 'FOO' is not understood; for example '0 6 \* \* MON-FRI'"),
        ("0 0 L-3 * *", r"day of the month 'L-3' is not understood"),
        ("* * * *", r"has 4 fields: a cron expression has five .* or six with the second first"),
        ("0", r"has 1 field:"),
        ("10s", r"'10s' is a duration, not a cron expression: for an even interval give it as every='10s'"),
        ("", r"has 0 fields"),
        ("@noon", r"not a name for a schedule: use one of @annually, @daily"),
        ("0 0 31 2 *", r"never fires: none of its months has such a day"),
        ("0 0 30 2 *", r"never fires"),
        ("* * */20 * 1L", r"never fires"),
        ("0 0 * * " + "9" * 5000, r"at most 500 characters"),
        ("0 0 * * " + "9" * 450, r"day of the week 9{20} does not lie"),
        ("0 0 */" + "9" * 450 + " * *", r"steps by more than 31"),
    ],
)
def test_errors_name_the_field_and_the_problem(expression: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        triggers.parse(expression)


@given(st.text(alphabet="0123456789*/,-LW#?@ MONFRIJA²\t", max_size=30))
@example("0 0 * * ²L")
@example("* * L/2 * *")
def test_any_text_is_an_expression_or_a_usage_error(text: str) -> None:
    try:
        triggers.parse(text)
    except UsageError:
        return
    assert triggers.next_of_cron(text, ZoneInfo("UTC"), 0) is not None


# ---- clock changes ----

BERLIN_SPRING = "2025-03-30"  # 02:00 is followed by 03:00
BERLIN_AUTUMN = "2025-10-26"  # 03:00 is followed by 02:00


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("30 2 * * *", ["03:00:00+02:00"]),
        ("0 30 2 * * *", ["03:00:00+02:00"]),
        ("10,20 2 * * *", ["03:00:00+02:00"]),
        ("*/30 2 * * *", ["03:00:00+02:00"]),
        ("0,30 2,3 * * *", ["03:00:00+02:00", "03:30:00+02:00"]),
        ("0 */2 * * *", ["00:00:00+01:00", "03:00:00+02:00", "04:00:00+02:00"]),
        ("30 * * * *", ["00:30:00+01:00", "01:30:00+01:00", "03:30:00+02:00", "04:30:00+02:00"]),
        ("30 0-23 * * *", ["00:30:00+01:00", "01:30:00+01:00", "03:30:00+02:00", "04:30:00+02:00"]),
        ("0 0/30 1-3 * * *", ["01:00:00+01:00", "01:30:00+01:00", "03:00:00+02:00", "03:30:00+02:00"]),
    ],
)
def test_in_spring(expression: str, expected: list[str]) -> None:
    found = times(expression, f"{BERLIN_SPRING}T00:00", len(expected) + 1, "Europe/Berlin")
    if expected[0].startswith("00:00"):
        found = [f"{BERLIN_SPRING} 00:00:00+01:00", *found]
    assert found[: len(expected)] == [f"{BERLIN_SPRING} {one}" for one in expected]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("30 2 * * *", ["02:30:00+02:00"]),
        ("0 30 2 * * *", ["02:30:00+02:00"]),
        ("0,30 2 * * *", ["02:00:00+02:00", "02:30:00+02:00"]),
        ("*/30 2 * * *", ["02:00:00+02:00", "02:30:00+02:00", "02:00:00+01:00", "02:30:00+01:00"]),
        ("0 2-23/2 * * *", ["02:00:00+02:00", "04:00:00+01:00", "06:00:00+01:00"]),
        ("30 * * * *", ["00:30:00+02:00", "01:30:00+02:00", "02:30:00+02:00", "02:30:00+01:00", "03:30:00+01:00"]),
        ("*/20 30 2 * * *", [f"02:30:{second}+0{offset}:00" for offset in (2, 1) for second in ("00", "20", "40")]),
    ],
)
def test_in_autumn(expression: str, expected: list[str]) -> None:
    found = times(expression, f"{BERLIN_AUTUMN}T00:00", len(expected) + 1, "Europe/Berlin")
    assert found[: len(expected)] == [f"{BERLIN_AUTUMN} {one}" for one in expected]
    assert found[-1] not in found[:-1]


def test_a_day_that_does_not_exist_fires_at_the_change() -> None:
    """Samoa went from the 29th to the 31st of December 2011."""
    assert times("0 12 * * *", "2011-12-29T11:00", 3, "Pacific/Apia") == [
        "2011-12-29 12:00:00-10:00",
        "2011-12-31 00:00:00+14:00",
        "2011-12-31 12:00:00+14:00",
    ]


def field(lowest: int, highest: int) -> st.SearchStrategy[tuple[str, frozenset[int], bool]]:
    """Draw a field: its text, the numbers that it means, and whether it begins with a star."""
    numbers = st.integers(lowest, highest)
    return st.one_of(
        st.just(("*", frozenset(range(lowest, highest + 1)), True)),
        st.integers(1, highest - lowest + 1).map(
            lambda step: (f"*/{step}", frozenset(range(lowest, highest + 1, step)), True)
        ),
        st.frozensets(numbers, min_size=1, max_size=5).map(
            lambda chosen: (",".join(map(str, sorted(chosen))), chosen, False)
        ),
        st.tuples(numbers, numbers).map(
            lambda ends: (f"{min(ends)}-{max(ends)}", frozenset(range(min(ends), max(ends) + 1)), False)
        ),
    )


HOURS = st.one_of(
    field(0, 23),
    st.frozensets(st.integers(0, 4), min_size=1).map(
        lambda chosen: (",".join(map(str, sorted(chosen))), chosen, False)
    ),
)
WEEKDAYS = st.one_of(st.just(("*", frozenset(range(7)), True)), field(0, 6))


@settings(max_examples=75, deadline=None)
@given(CHANGES, field(0, 59), HOURS, WEEKDAYS, st.booleans())
def test_the_contract_agrees_with_a_check_of_every_minute(
    change: tuple[str, datetime],
    minutes: tuple[str, frozenset[int], bool],
    hours: tuple[str, frozenset[int], bool],
    weekdays: tuple[str, frozenset[int], bool],
    six: bool,
) -> None:
    name, moment = change
    zone = ZoneInfo(name)
    expression = " ".join(["0"] * six + [minutes[0], hours[0], "*", "*", weekdays[0]])

    def matches(wall: datetime) -> bool:
        return wall.minute in minutes[1] and wall.hour in hours[1] and wall.isoweekday() % 7 in weekdays[1]

    every_hour, star = len(hours[1]) == 24, minutes[2]
    expected = set[int]()
    start, end = moment - timedelta(hours=30), moment + timedelta(hours=30)
    instant, shown = start, start.astimezone(zone)
    while instant <= end:
        wall = shown.replace(tzinfo=None, fold=0)
        if matches(wall) and (shown.fold == 0 or every_hour or star):
            expected.add(us(instant))
        instant += timedelta(minutes=1)
        shown, skipped = instant.astimezone(zone), wall + timedelta(minutes=1)
        while skipped < shown.replace(tzinfo=None, fold=0):  # the clock skips these
            if matches(skipped) and not every_hour and instant <= end:
                expected.add(us(instant))
            skipped += timedelta(minutes=1)

    found, now = list[int](), us(start) - 1
    while (instant_us := triggers.next_of_cron(expression, zone, now)) is not None and instant_us <= us(end):
        assert instant_us > now
        found.append(instant_us)
        now = instant_us
    assert [show(one, name) for one in found] == [show(one, name) for one in sorted(expected)]


@settings(max_examples=100, deadline=None)
@given(
    CHANGES,
    st.sampled_from(["*/7 * * * *", "30 2 * * *", "*/30 1-3 * * *", "0 0 0 * * *", "*/40 * * * * *"]),
    st.data(),
)
def test_the_next_time_is_the_same_from_every_earlier_instant(
    change: tuple[str, datetime], expression: str, data: st.DataObject
) -> None:
    zone, moment = ZoneInfo(change[0]), us(change[1])
    after = data.draw(st.integers(moment - 4 * HOUR, moment + 4 * HOUR))
    following = triggers.next_of_cron(expression, zone, after)
    assert following is not None
    assert after < following
    between = data.draw(st.integers(after, following - 1))
    assert triggers.next_of_cron(expression, zone, between) == following


@settings(max_examples=60, deadline=None)
@given(NAMES, st.integers(0, 23), st.integers(0, 59), st.integers(1974, 2043), st.booleans())
@example("Pacific/Apia", 12, 0, 2011, False)
@example("America/Havana", 0, 0, 2024, True)
@example("America/St_Johns", 0, 0, 2000, False)
@example("Pacific/Kanton", 0, 1, 1994, False)
def test_a_fixed_time_fires_once_for_every_day_of_the_calendar(
    name: str, hour: int, minute: int, year: int, six: bool
) -> None:
    """This includes days that a zone skips: they fire at the change."""
    zone = ZoneInfo(name)
    expression = f"{'0 ' if six else ''}{minute} {hour} * * *"
    # Start on a day that every zone has: some have skipped the last day of a year.
    first, last = at(f"{year}-03-01T12:00", name), at(f"{year + 1}-03-01T12:00", name)
    found, now = list[int](), first
    while (following := triggers.next_of_cron(expression, zone, now)) is not None and following <= last:
        found.append(following)
        now = following
    days = (date(year + 1, 3, 1) - date(year, 3, 1)).days
    assert len(found) == days
    assert len(set(found)) == days
    on_time = [one for one in found if show(one, name)[11:16] == f"{hour:02}:{minute:02}"]
    assert len(found) - len(on_time) <= len([one for one in changes(name) if first < us(one) <= last])


@settings(max_examples=60, deadline=None)
@given(CHANGES, st.sampled_from([1, 2, 5, 10, 15, 30, 60]), st.integers(0, 59))
def test_expressions_by_frequency_keep_even_intervals(change: tuple[str, datetime], step: int, offset: int) -> None:
    name, moment = change
    zone = ZoneInfo(name)
    before, since = (one.astimezone(zone).utcoffset() for one in (moment - timedelta(minutes=1), moment))
    assert before is not None
    assert since is not None
    if (since - before) % timedelta(minutes=step):
        return  # the clock change is not a multiple of the interval
    expression = f"*/{step} * * * *" if step < 60 else f"{offset} * * * *"
    now = us(moment) - 5 * HOUR
    first = triggers.next_of_cron(expression, zone, now)
    assert first is not None
    now = first
    while now < us(moment) + 5 * HOUR:
        following = triggers.next_of_cron(expression, zone, now)
        assert following == now + step * MINUTE
        now = following


def test_every_second_of_a_day_that_has_25_hours() -> None:
    zone, now = ZoneInfo("Europe/Berlin"), at("2025-10-26T01:59:59", "Europe/Berlin")
    for _ in range(2 * 3600 + 10):
        following = triggers.next_of_cron("* * * * * *", zone, now)
        assert following == now + SECOND
        now = following


def test_every_zone_of_this_system() -> None:
    now = us(datetime(2030, 6, 15, 12, tzinfo=UTC))
    for name in ZONES:
        hourly = triggers.next_of_cron("@hourly", ZoneInfo(name), now)
        assert hourly is not None
        assert now < hourly <= now + HOUR
