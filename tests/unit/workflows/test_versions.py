from __future__ import annotations

import pytest

from mainspring.workflows.model import LATELY_US, Definition, version_for_new_runs

SECOND = 1_000_000
NOW = 10_000 * SECOND


def seen(version: str, first: int, last: int) -> Definition:
    """Return a version that was seen first and last so many seconds ago."""
    return Definition("order", version, first_seen_us=NOW - first * SECOND, last_seen_us=NOW - last * SECOND)


@pytest.mark.parametrize(
    ("definitions", "version"),
    [
        ([], None),
        ([seen("1", 900, 900)], "1"),
        # a deploy: both are connected, whichever was written last
        ([seen("1", 900, 0), seen("2", 5, 5)], "2"),
        ([seen("1", 900, 59), seen("2", 600, 0)], "2"),
        ([seen("1", 900, 0), seen("2", 600, 59)], "2"),
        # a reconnection of the old version, while the new one's last time is a minute old
        ([seen("1", 900, 0), seen("2", 600, 99)], "2"),
        # the new version's workers are gone: a rollback
        ([seen("1", 900, 0), seen("2", 600, 100)], "1"),
        # nothing is connected: the last time counts, however long ago
        ([seen("1", 9_000, 8_000), seen("2", 8_500, 7_950)], "2"),
        ([seen("1", 9_000, 7_000), seen("2", 8_500, 7_950)], "1"),
        # a rollback to an old version, and a third one
        ([seen("1", 9_000, 10), seen("2", 8_000, 500), seen("3", 30, 10)], "3"),
        # both at once, by one App
        ([seen("10", 50, 0), seen("9", 50, 0)], "10"),
    ],
)
def test_new_runs_get_the_version_that_is_connected_and_was_registered_last(
    definitions: list[Definition], version: str | None
) -> None:
    for order in (definitions, definitions[::-1]):
        found = version_for_new_runs(order)
        assert (found and found.version) == version


def test_a_rollback_is_noticed_within_two_minutes() -> None:
    """Both were seen last just before the new version's workers left; the old one is seen each minute from then on."""
    new_us = NOW
    for minute in (1, 2):
        old = Definition("order", "1", first_seen_us=1, last_seen_us=NOW + minute * 60 * SECOND)
        new = Definition("order", "2", first_seen_us=2, last_seen_us=new_us)
        found = version_for_new_runs([old, new])
        assert found is not None
        assert found.version == ("2" if minute == 1 else "1")
    assert LATELY_US < 120 * SECOND
