"""The next act of a worker for a run: a pure function of the work that the run's code has brought and of the open reports."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.worker.workflows.runs import Run

TOGETHER_BYTES: Final = 64 * 1024
"""Bytes of results that are recorded with their decision above which they wait for it no longer."""
TOGETHER_STEPS: Final = 1_000
"""The number of such results above which they wait no longer."""


class Next(Enum):
    """The next act for a run."""

    NOTHING = auto()
    """An answer, an activity, a step or a decision comes first."""
    COMPLETE = auto()
    """Report the decision as complete."""
    RECORD = auto()
    """Report what there is, and go on with the decision."""
    START = auto()
    """Start steps: everything before them is recorded."""
    WAIT = auto()
    """Keep the results a short time, because the decision may soon be complete."""
    REST = auto()
    """Report the decision as complete, with the times of the next attempts of its steps."""
    HAND_BACK = auto()
    """Give the decision back: the worker ends, and nothing of the decision is to be recorded."""


def next_act(run: Run, monotonic_us: Callable[[], int], *, draining: bool) -> Next:
    """Return the next act for a run."""
    if run.reporting or not (run.key or run.settlements):
        return Next.NOTHING
    if run.reading:
        return Next.HAND_BACK if draining else Next.NOTHING
    if run.finished or not run.waits:
        return Next.COMPLETE
    if run.may_rest(monotonic_us, draining=draining):
        return Next.REST
    if run.starts and not draining:
        return Next.RECORD if run.unrecorded else Next.START
    if run.decisions or run.settlements or run.outdated:
        return Next.RECORD
    if run.steps:
        many = run.step_bytes > TOGETHER_BYTES or len(run.steps) > TOGETHER_STEPS
        now = run.eager or draining or many
        return Next.RECORD if now else Next.NOTHING if run.outcomes else Next.WAIT
    return Next.HAND_BACK if draining and not run.executes else Next.NOTHING
