"""The rules for published values."""

from __future__ import annotations

import pytest

from mainspring.errors import UsageError
from mainspring.values.model import (
    ALL_BYTES,
    MOST_NAMES,
    NAME_LIMIT,
    VALUE_BYTES,
    Mark,
    NewValue,
    Published,
    StoredValue,
    is_json,
    merge,
    refused_values,
)


def new(name: str, value: bytes = b"1", *, job: int = 7) -> NewValue:
    return NewValue(job, name, 1, 1000, value)


@pytest.mark.parametrize("name", ["", "x" * (NAME_LIMIT + 1), "a\nb", "a\0", "\ud800", "\u202e"])
def test_a_name_is_printable_and_short(name: str) -> None:
    with pytest.raises(UsageError, match="no name of a published value"):
        Published().add(name, b"1")
    assert "no name" in refused_values([(name, b"1")])


def test_a_name_is_a_text() -> None:
    with pytest.raises(UsageError, match="is a text such as 'stage'; this is int"):
        Published().add(7, b"1")
    assert Published().add("ä/ b", b"1") == "ä/ b"


def test_a_large_value_is_refused_where_it_is_published() -> None:
    largest = b'"' + b"x" * (VALUE_BYTES - 2) + b'"'
    published = Published()
    published.add("a", largest)
    with pytest.raises(UsageError, match=r"the value 'b' has 65,537 bytes as JSON.*at most 65,536: publish a summary"):
        published.add("b", largest + b" ")
    assert refused_values([("a", largest)]) == ""
    assert "has 65537 bytes" in refused_values([("a", largest + b" ")])


def test_one_name_too_many_is_refused() -> None:
    published = Published()
    for number in range(MOST_NAMES):
        published.add(f"n{number}", b"1")
    published.add("n0", b"2")
    with pytest.raises(UsageError, match=r"'one more' would be the 101st name.*at most 100"):
        published.add("one more", b"1")
    values = [(f"n{number}", b"1") for number in range(MOST_NAMES)]
    assert refused_values(values) == ""
    assert "at most 100 published values" in refused_values([*values, ("one more", b"1")])


def test_all_values_have_a_limit() -> None:
    published, large = Published(), b"1" * VALUE_BYTES
    for number in range(ALL_BYTES // VALUE_BYTES):
        published.add(f"n{number}", large)
    with pytest.raises(UsageError, match="1,048,577 bytes, and at most 1,048,576"):
        published.add("one more", b"1")
    published.add("n0", b"1")
    published.add("one more", b"1")


def test_a_refused_value_does_not_count() -> None:
    published = Published()
    with pytest.raises(UsageError):
        published.add("a", b"1" * (VALUE_BYTES + 1))
    for number in range(MOST_NAMES):
        published.add(f"n{number}", b"1")


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (b"1", True),
        (b'{"a":[]}', True),
        (b"null", True),
        (b"", False),
        (b"{", False),
        (b'"\xff"', False),
        (b"1 2", False),
        (b"[" * 600 + b"]" * 600, False),
    ],
)
def test_a_value_is_json_that_others_can_read(value: bytes, fits: bool) -> None:
    assert is_json(value) is fits
    assert (refused_values([("a", value)]) == "") is fits


def test_later_changes_have_higher_numbers() -> None:
    stored = [Mark(7, "a", 4, 1), Mark(7, "b", 9, 1), Mark(8, "a", 2, 1)]
    put, dropped = merge(stored, [new("a"), new("c"), new("a", b"2"), new("a", job=8), new("x", job=9)])
    assert put == [
        StoredValue(7, "a", 1, 12, 1000, b"2"),
        StoredValue(7, "c", 1, 11, 1000, b"1"),
        StoredValue(8, "a", 1, 3, 1000, b"1"),
        StoredValue(9, "x", 1, 1, 1000, b"1"),
    ]
    assert dropped == []


def test_the_oldest_values_make_room() -> None:
    stored = [Mark(7, f"n{number}", number + 1, 1) for number in range(MOST_NAMES)]
    put, dropped = merge(stored, [new("x"), new("y"), new("n5")])
    assert [row.name for row in put] == ["n5", "x", "y"]
    assert dropped == [(7, "n0"), (7, "n1")]


def test_new_values_that_are_too_many_are_not_written() -> None:
    put, dropped = merge([], [new(f"n{number:03}") for number in range(MOST_NAMES + 3)])
    assert [row.name for row in put] == [f"n{number:03}" for number in range(3, MOST_NAMES + 3)]
    assert dropped == []


def test_large_values_make_room_too() -> None:
    stored = [Mark(7, f"n{number}", number + 1, VALUE_BYTES) for number in range(ALL_BYTES // VALUE_BYTES)]
    _, dropped = merge(stored, [new("x")])
    assert dropped == [(7, "n0")]
