"""The first and the last lines of a delivery stay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainspring.job_logs.model import Chunk, HeadAndTail


def chunk(number: int, lines: int, size: int) -> Chunk:
    return Chunk(number, 7, "default", b"f", 1, 0, number, lines, 1, bytes(size - 64))


def test_a_short_log_stays_whole() -> None:
    keeping = HeadAndTail(half_lines=5, half_bytes=10_000)
    assert [keeping.add(chunk(number, 1, 100)) for number in range(10)] == [[]] * 10


def test_of_a_long_log_the_middle_goes() -> None:
    keeping = HeadAndTail(half_lines=5, half_bytes=10_000)
    dropped = [one for number in range(100) for one in keeping.add(chunk(number, 1, 100))]
    assert dropped == list(range(5, 95))


def test_the_bytes_count_as_well() -> None:
    keeping = HeadAndTail(half_lines=1000, half_bytes=500)
    dropped = [one for number in range(100) for one in keeping.add(chunk(number, 1, 100))]
    assert dropped == list(range(5, 95))


@given(st.lists(st.tuples(st.integers(1, 7), st.integers(64, 300))))
def test_both_halves_are_bounded_and_the_last_chunk_stays(sizes: list[tuple[int, int]]) -> None:
    keeping = HeadAndTail(half_lines=10, half_bytes=500)
    kept: dict[int, Chunk] = {}
    for number, (lines, size) in enumerate(sizes):
        kept[number] = chunk(number, lines, size)
        for one in keeping.add(kept[number]):
            del kept[one]
        assert number in kept
        assert sum(one.lines for one in kept.values()) <= 20
        assert sum(one.size for one in kept.values()) <= 1000
