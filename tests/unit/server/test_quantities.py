from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import SettingsError
from mainspring.server.quantities import format_duration, format_size, parse_duration, parse_size

DURATIONS = [
    ("250ms", 0.25),
    ("30s", 30.0),
    ("5m", 300.0),
    ("2h", 7200.0),
    ("3d", 259200.0),
    ("1h30m", 5400.0),
    ("1.5s", 1.5),
    ("0", 0.0),
    (" 10s ", 10.0),
]


@pytest.mark.parametrize(("text", "seconds"), DURATIONS)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 s", "5s!", "5x", "1h 30m", "nan", "1e3s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is no duration"):
        parse_duration(text)


@given(st.integers(0, 10**9))
def test_durations_are_read_as_they_are_written(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(milliseconds / 1000)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("512K", 524288), ("64M", 67108864), ("1G", 1 << 30), ("1.5k", 1536), ("64MiB", 64 << 20)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1", "64X", "1 2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is no size"):
        parse_size(text)


def test_sizes_for_people() -> None:
    assert [format_size(size) for size in (0, 1023, 1536, 64 << 20)] == ["0 B", "1023 B", "1.5 KiB", "64.0 MiB"]
