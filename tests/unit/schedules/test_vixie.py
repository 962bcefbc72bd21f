"""Cron expressions against the grammar of Vixie's cron, as Debian's crontab(5) describes it and its parser reads it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.errors import UsageError
from mainspring.schedules import triggers

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


class Field(NamedTuple):
    """A field, with a way to try it alone."""

    low: int
    high: int
    expression: str
    """An expression with a place for the field."""
    span: timedelta
    """A time in which each of its values comes."""
    names: list[str]

    def value(self, wall: datetime) -> int:
        return {
            "{} * * * *": wall.minute,
            "0 {} * * *": wall.hour,
            "0 0 {} * *": wall.day,
            "0 0 1 {} *": wall.month,
            "0 0 * * {}": wall.isoweekday() % 7,
        }[self.expression]


FIELDS = {
    "minute": Field(0, 59, "{} * * * *", timedelta(hours=1), []),
    "hour": Field(0, 23, "0 {} * * *", timedelta(days=1), []),
    "day of month": Field(1, 31, "0 0 {} * *", timedelta(days=31), []),
    "month": Field(1, 12, "0 0 1 {} *", timedelta(days=365), MONTHS),
    "day of week": Field(0, 7, "0 0 * * {}", timedelta(days=7), DAYS),
}
START = datetime(2029, 12, 31, 23, 59, 59, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def fired(field: Field, text: str) -> set[int]:
    """Return the values of a field at which an expression fires."""
    values, at_us = set(), (START - EPOCH) // timedelta(microseconds=1)
    end_us = at_us + field.span // timedelta(microseconds=1)
    expression = field.expression.format(text)
    while (following := triggers.next_of_cron(expression, ZoneInfo("UTC"), at_us)) is not None and following <= end_us:
        at_us = following
        values.add(field.value(EPOCH + timedelta(microseconds=at_us)))
    return values


def read(field: Field, text: str) -> set[int] | None:
    """Return the values of a field's text as Vixie's parser reads them (``get_list`` and ``get_range``); None: an error."""
    values: set[int] = set()
    for term in text.split(","):
        span, slash, step_text = term.partition("/")
        step = 1
        if slash:
            if not (step_text.isascii() and step_text.isdecimal()) or int(step_text) == 0:
                return None
            step = int(step_text)
        if span == "*":
            low, high = field.low, field.high
        else:
            ends = [number(field, end) for end in span.split("-")]
            if len(ends) > 2 or (slash and len(ends) == 1):
                return None  # a step needs a range
            first, last = ends[0], ends[-1]
            if first is None or last is None or not field.low <= first <= last <= field.high:
                return None
            low, high = first, last
        values.update(range(low, high + 1, step))
    return {value % 7 for value in values} if field.names is DAYS else values


def number(field: Field, text: str) -> int | None:
    if text.lower() in field.names:
        return (field.names is MONTHS) + field.names.index(text.lower())
    return int(text) if text.isascii() and text.isdecimal() else None


@pytest.mark.parametrize(
    ("field", "text", "values"),
    [
        ("hour", "8-11", {8, 9, 10, 11}),
        ("minute", "1,2,5,9", {1, 2, 5, 9}),
        ("minute", "0-4,8-12", {0, 1, 2, 3, 4, 8, 9, 10, 11, 12}),
        ("hour", "0-23/2", set(range(0, 24, 2))),
        ("hour", "0,2,4,6,8,10,12,14,16,18,20,22", set(range(0, 24, 2))),
        ("hour", "*/2", set(range(0, 24, 2))),
        ("minute", "10-10/4", {10}),
        ("minute", "10-11/4", {10}),
        ("minute", "59-59/59", {59}),
        ("minute", "08-8/3,5", {5, 8}),
        ("hour", "23-23/2", {23}),
        ("day of month", "31-31/3", {31}),
        ("month", "jan-jan/2", {1}),
        ("month", "3-MAR/2", {3}),
        ("day of week", "3-wed/2", {3}),
        ("day of week", "7-7/2", {0}),
        ("day of week", "0", {0}),
        ("day of week", "7", {0}),
        ("day of week", "5-7", {5, 6, 0}),
        ("day of week", "1-7/2", {1, 3, 5, 0}),
        ("day of week", "*/2", {0, 2, 4, 6}),
        ("day of week", "Mon,wEd,FRI", {1, 3, 5}),
        ("day of week", "sun-sat", set(range(7))),
        ("month", "jAn-mAr", {1, 2, 3}),
        ("minute", "*,5", set(range(60))),
        ("minute", "*/15,3", {0, 3, 15, 30, 45}),
        ("minute", "5,5,5", {5}),
        ("minute", "00,08,09", {0, 8, 9}),
        ("minute", "0-59/60", {0}),
    ],
)
def test_the_manual(field: str, text: str, values: set[int]) -> None:
    one = FIELDS[field]
    assert fired(one, text) == values == read(one, text)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *(
            (field, text)
            for field in FIELDS
            for text in ("", "x", "-", "/", "*/", "*/0", "*-3", "5-", "-5", "1-2-3", "3-1")
        ),
        *(
            (field, text)
            for field in FIELDS
            for text in ("1//2", "1-3/2/2", "1,", ",1", "1,,2", "**", "*5", "+1", "1.0", "٣")
        ),
        *(
            (field, text)
            for field in FIELDS
            for text in ("0x1", "1_0", "~", "1~3", "?", "H", "%", "99", "1-99", "99999" * 9)
        ),
        ("day of month", "0"),
        ("day of month", "mon"),
        ("month", "0"),
        ("month", "january"),
        ("month", "sun"),
        ("day of week", "8"),
        ("day of week", "monday"),
        ("day of week", "fri-mon"),
        ("hour", "24"),
        ("minute", "60"),
        ("day of month", "L/2"),
        ("day of month", "LW/2"),
        ("day of week", "5L/2"),
    ],
)
def test_everything_else_is_refused_with_a_sentence(field: str, text: str) -> None:
    assert read(FIELDS[field], text) is None
    expression = FIELDS[field].expression.format(text)
    with pytest.raises(UsageError, match=r"^'.*; for example|fields: a cron expression|does not lie|characters"):
        triggers.parse(expression)


@pytest.mark.parametrize("name", ["@reboot", "@Reboot", "@every_minute", "@every 5m", "@", "@noon"])
def test_other_names_are_refused_with_a_sentence(name: str) -> None:
    with pytest.raises(UsageError, match=f"^'{name}' is no"):
        triggers.parse(name)


TERMS = st.one_of(
    st.just("*"),
    st.integers(0, 60).map(str),
    st.sampled_from([*MONTHS, *DAYS]),
    st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda ends: f"{min(ends)}-{max(ends)}"),
    st.tuples(st.sampled_from(DAYS), st.sampled_from(DAYS)).map("-".join),
)
PARTS = st.tuples(TERMS, st.none() | st.integers(1, 70)).map(
    lambda part: part[0] if part[1] is None else f"{part[0]}/{part[1]}"
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(FIELDS)), st.lists(PARTS, min_size=1, max_size=3).map(",".join))
def test_all_fields_mean_the_same(name: str, text: str) -> None:
    """There are two differences: a step above the range is refused, and ``5/10`` means ``5-59/10``, as in Quartz."""
    field = FIELDS[name]
    steps = [int(term.partition("/")[2] or 1) for term in text.split(",")]
    one_with_step = any("/" in term and "-" not in term and "*" not in term for term in text.split(","))
    expected = read(field, text)
    if max(steps) > field.high - field.low + 1 or (expected is None and not one_with_step):
        with pytest.raises(UsageError):
            triggers.parse(field.expression.format(text))
    elif expected is not None:
        assert fired(field, text) == expected


@pytest.mark.parametrize("day", ["*", "*/2", "*,5", "13", "1-31", "1,15"])
@pytest.mark.parametrize("week", ["*", "*/2", "5", "0-6", "mon,fri"])
def test_both_days_match_if_one_field_begins_with_a_star(day: str, week: str) -> None:
    by_day, by_week = read(FIELDS["day of month"], day), read(FIELDS["day of week"], week)
    assert by_day is not None
    assert by_week is not None
    both = day.startswith("*") or week.startswith("*")
    expected: list[datetime] = []
    found: list[datetime] = []
    for number in range(90):
        date = datetime(2030, 1, 1, tzinfo=UTC) + timedelta(days=number)
        matches = date.day in by_day, date.isoweekday() % 7 in by_week
        if all(matches) if both else any(matches):
            expected.append(date)
    at_us = (START - EPOCH) // timedelta(microseconds=1)
    while len(found) < len(expected):
        following = triggers.next_of_cron(f"0 0 {day} * {week}", ZoneInfo("UTC"), at_us)
        assert following is not None
        at_us = following
        found.append(EPOCH + timedelta(microseconds=at_us))
    assert found == expected
