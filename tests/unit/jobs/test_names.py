"""Names of very many functions, about."""

from __future__ import annotations

import tracemalloc

from mainspring.jobs.held import BITS, Names, Rows


def many(number: int, of: bytes = b"made up ") -> list[bytes]:
    return [of + b"%d" % at for at in range(number)]


def test_what_was_added_is_known_and_hardly_anything_else() -> None:
    names = Names()
    for name in many(20_000):
        names.add(name)
        names.add(name)
    assert all(name in names for name in many(20_000))
    assert 19_900 < names.number <= 20_000
    assert sum(name in names for name in many(20_000, b"other ")) < 20


def test_it_costs_the_same_however_many_they_are() -> None:
    tracemalloc.start()
    try:
        names = Names()
        for name in many(5000):
            names.add(name)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < BITS // 8 + 10_000


def test_rows_are_those_of_the_last_reading_and_those_that_came_since() -> None:
    rows = Rows()
    assert b"a" not in rows
    assert rows.number == 0
    rows.add(b"a")
    rows.add(b"gone")
    rows.begin()
    rows.met(b"a")
    rows.add(b"meanwhile")
    assert rows.number == 3, "the last one holds until the next one is done"
    rows.met(b"meanwhile")
    rows.met(b"b")
    rows.end()
    assert rows.number == 3
    assert [name in rows for name in (b"a", b"meanwhile", b"b", b"gone")] == [True, True, True, False]


def test_rows_that_are_in_memory_since_are_counted_there() -> None:
    rows = Rows()
    rows.left(b"a")
    rows.add(b"a")
    rows.left(b"a")
    rows.left(b"new")
    assert rows.number == 0
    rows.begin()
    rows.give_up()
    rows.add(b"b")
    assert rows.number == 1
