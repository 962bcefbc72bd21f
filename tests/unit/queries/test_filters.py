"""The criteria for jobs."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.jobs.model import Job, Options, State, encode_options, failure
from mainspring.queries import JobFilter, matches_pattern


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("pay", [b"pay"], [b"pay2", b"a pay", b""]),
        ("pay*", [b"pay", b"pay.card", b"pay\n"], [b"repay", b"Pay"]),
        ("*.eu", [b".eu", b"pay.eu", b"a.eu.eu"], [b"pay.eu2", b"pay-eu"]),
        ("a*b*c", [b"abc", b"a1b2c", b"abbcc"], [b"acb", b"ab", b"c"]),
        ("*", [b"", b"any", b"\xff"], []),
        ("[ab]?", [b"a1", b"bc"], [b"[ab]?", b"a"]),
        ("*a*a", [b"aa", b"baab a"], [b"a", b"ab"]),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, matching: list[bytes], others: list[bytes]) -> None:
    assert [name for name in matching + others if matches_pattern(name, [pattern])] == matching
    assert not any(matches_pattern(name, []) for name in matching)


def test_a_long_pattern_takes_no_longer_than_the_name() -> None:
    assert not matches_pattern(b"a" * 500, ["*".join("a" * 60) + "b"])


def test_the_parts_of_stored_bytes_are_in_each_matching_job() -> None:
    for run in (1, 127, 128, 70_000, 5_000_000_000_000):
        where = JobFilter(schedule="nächtlich", run=run, error_type='a"b')
        options = Options(timeout=1.0, schedule="nächtlich", run=(run, 1000))
        job = Job(1, b"f", b"", options=options, error=failure('a"b', "why"))
        assert where.matches(job)
        stored = encode_options(options)
        assert all(part is not None and part in stored for part in where.in_options)
        assert where.error_prefix is not None
        assert job.error.startswith(where.error_prefix)


def test_a_stored_filter_stays_the_same() -> None:
    where = JobFilter(states=(State.FAILED,), function=b"\xff", functions=("a*",), created_to_us=5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(where), type=JobFilter) == where
