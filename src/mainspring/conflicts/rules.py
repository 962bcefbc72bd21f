"""The rules for a submit whose unique has a live job.

| rule | the live job has not begun | it has begun |
|---|---|---|
| join | JOIN | JOIN |
| skip | SKIP | SKIP |
| replace_input | REPLACE | FOLLOW |
| cancel_old | CANCEL | STOP |
| any, with a debounce | REPLACE, at a later time | FOLLOW; STOP with cancel_old |

A *successor* is the job that a FOLLOW or a STOP stores (``jobs.successors``): it begins when the live job has ended.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from mainspring.errors import UsageError
from mainspring.jobs.model import State

if TYPE_CHECKING:
    from mainspring.jobs.model import Job

OnConflict = Literal["join", "skip", "cancel_old", "replace_input"]
"""The act of a submit whose unique has a live job."""

REPLACED: Final = "replaced by a later submit of its unique"
"""Why the old job of ``cancel_old`` was cancelled."""


class Rule(NamedTuple):
    """The rule of a submit; times are microseconds, 0 for none."""

    on_conflict: OnConflict = "join"
    debounce_us: int = 0
    debounce_max_us: int = 0

    def due_us(self, first_us: int, now_us: int) -> int:
        """Return when a job runs whose unique was first submitted at ``first_us``, if no other submit follows."""
        due_us = now_us + self.debounce_us
        return min(due_us, first_us + self.debounce_max_us) if self.debounce_max_us else due_us


def rule_of(
    on_conflict: OnConflict | None, debounce: float | None, debounce_max: float | None, unique: bytes | str
) -> Rule | None:
    """Return the rule of a submit by its options, times in seconds; None for a plain join. Raises UsageError."""
    if debounce_max is not None and debounce is None:
        raise UsageError("debounce_max limits a debounce: give debounce too")
    if debounce is None and on_conflict in {None, "join"}:
        return None
    if not unique:
        raise UsageError(f"{'on_conflict' if debounce is None else 'debounce'} needs a unique: give unique too")
    if debounce is None:
        return Rule(on_conflict or "join")
    if on_conflict in {"join", "skip"}:
        raise UsageError(
            f"debounce runs the last input, and on_conflict {on_conflict} keeps the first: leave out on_conflict, or give"
            " replace_input or cancel_old"
        )
    if debounce_max is not None and debounce_max < debounce:
        raise UsageError(f"debounce_max is {debounce_max:g} s, less than the debounce of {debounce:g} s")
    return Rule(on_conflict or "replace_input", round(debounce * 1_000_000), round((debounce_max or 0) * 1_000_000))


class Step(Enum):
    """The act of a submit about the live job of its unique."""

    JOIN = auto()
    SKIP = auto()
    REPLACE = auto()
    """Give the live job the new input."""
    CANCEL = auto()
    """Cancel the live job, which waits, and store the new one in its place."""
    FOLLOW = auto()
    """Store the new job as the successor of the live one, or give the successor there is the new input."""
    STOP = auto()
    """The same, and ask for the end of the live job."""


def decide(rule: Rule, *, has_begun: bool) -> Step:
    """Return what a submit does about a live job."""
    match rule.on_conflict:
        case "join":
            return Step.JOIN
        case "skip":
            return Step.SKIP
        case "replace_input":
            return Step.FOLLOW if has_begun else Step.REPLACE
        case "cancel_old":
            if has_begun:
                return Step.STOP
            return Step.REPLACE if rule.debounce_us else Step.CANCEL


def has_begun(job: Job) -> bool:
    """Return whether a live job has begun, or may have: a node holds it, or it has had an attempt."""
    return job.state > State.PENDING or job.attempt > 0 or job.started_us > 0
