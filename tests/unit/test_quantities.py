from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import SettingsError
from mainspring.quantities import format_duration, format_size, parse_duration, parse_size, spell_duration

DURATION_CASES = [
    ("250ms", 0.25),
    ("30s", 30.0),
    ("5m", 300.0),
    ("2h", 7200.0),
    ("3d", 259200.0),
    ("1h30m", 5400.0),
    ("1.5s", 1.5),
    ("0", 0.0),
    (" 10s ", 10.0),
    ("1h0.1s", 3600.1),
    ("250us", 0.00025),
    ("2w", 1209600.0),
]


@pytest.mark.parametrize(("text", "seconds"), DURATION_CASES)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "s", "-5s", "5 s", "5s!", "5x", "1h 30m", "nan", "1e3s", "٣s", "9" * 400 + "d"]
)
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a duration"):
        parse_duration(text)


@given(st.one_of(st.integers(0, 10**7), st.integers(0, 10**15)))
def test_formatted_durations_are_parsed_exactly(microseconds: int) -> None:
    seconds = float(Decimal(microseconds) / 1_000_000)
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.floats(0, 1e6))
def test_durations_are_formatted_to_the_microsecond(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.00025, "250us"),
        (0.0015, "1.5ms"),
        (0.25, "250ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (90, "1m30s"),
        (3600, "1h"),
        (5400, "1h30m"),
        (86400, "1d"),
        (2 * 86400 + 3 * 3600 + 4 * 60 + 5.006, "2d3h4m5.006s"),
    ],
)
def test_durations_are_formatted_in_whole_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (30.0, "30 s"),
        (120.0, "2 min"),
        (90.0, "1 min 30 s"),
        (0.25, "250 ms"),
        (0.0, "0 s"),
        (1e-5, "10 us"),
        (7200, "2 h"),
    ],
)
def test_durations_in_sentences(seconds: float, text: str) -> None:
    assert spell_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("512K", 524288), ("64M", 67108864), ("1G", 1 << 30), ("1.5k", 1536), ("64MiB", 64 << 20)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1", "64X", "1 2"])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a size"):
        parse_size(text)


def test_sizes_for_people() -> None:
    assert [format_size(size) for size in (0, 1023, 1536, 64 << 20)] == ["0 B", "1023 B", "1.5 KiB", "64.0 MiB"]
