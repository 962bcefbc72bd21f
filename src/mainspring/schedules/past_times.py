"""The past fire times of a schedule, and the values of a step that fires them: see ``backfill``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.schedules import triggers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.schedules.model import Fire
    from mainspring.schedules.reconcile import Stored


class Backfill(NamedTuple):
    """A step of a backfill."""

    operation: int
    """The id of the operation."""
    name: str
    """The schedule's key."""
    after_us: int
    """The place: times after this one have not had their turn."""
    until_us: int
    """The last time that has a turn."""
    limit: int
    """The most times in this step."""
    now_us: int
    permits: Callable[[str], bool]
    """Returns whether the caller may run a function."""


class Backfilled(NamedTuple):
    """The outcome of a step."""

    rows: list[Fire]
    """The rows of the times that it has fired."""
    after_us: int
    """The new place; the same if ``overlap`` forbids more runs for now."""
    is_last: bool = False
    """Whether no times are left."""
    already: int = 0
    """The number of times that have run already, or are about to."""
    forgotten: int = 0
    """The number of times that may have run already: their rows may have been deleted."""
    error: str = ""
    """Why the backfill cannot go on."""


def past_times(stored: Stored, after_us: int, until_us: int) -> Iterator[int | None]:
    """Yield the decided fire times after an instant up to another, and None for each excluded day; see ``running_steps``."""
    schedule, state, _ = stored
    if state.next_us is not None:
        until_us = min(until_us, state.next_us - 1)  # the schedule itself decides later times
    return triggers.running_steps(schedule, after_us, until_us)
