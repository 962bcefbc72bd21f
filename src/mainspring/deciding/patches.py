"""Patches: changes of a workflow's code while runs are open. Each run has a patch from one of its decisions on.

The first live decision that asks for a patch records it as a marker. Replays of that decision and of later ones have the patch,
replays of earlier ones do not. So the recorded iterations of a loop keep the old code, and new ones use the new code. A decision
that earlier code began, and that was lost after it had recorded steps, does not get the patch when it is resumed: its first part
ran without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.client.validation import check_text
from mainspring.errors import UsageError
from mainspring.workflows.decisions.model import RecordMarker
from mainspring.workflows.history import MarkerName, MarkerRecorded

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.workflows.decisions.model import Decision

ID_LIMIT: Final = 256
"""Characters of a patch's id."""


def is_patch(event: object) -> bool:
    """Return whether an event records a patch."""
    return type(event) is MarkerRecorded and event.native and event.name == MarkerName.PATCH


class Patches:
    """The patches of one run; its decisions are numbered from 1."""

    def __init__(self, issue: Callable[[Decision], None]) -> None:
        self._issue = issue
        self._first: dict[str, int] = {}
        """The first decision of each recorded patch. In a replay, it also has the patches of later decisions."""
        self._read = 0
        """The number of completed decisions whose events were read."""
        self._decision = 1
        """The number of the decision that the code makes or repeats."""
        self._live = False
        """Whether the decision is new: nothing of it was recorded when it began."""

    def begin(self, *, live: bool) -> None:
        """Note that the code goes on, with a new decision (``live``) or a recorded one."""
        self._live = live

    def next_decision(self) -> None:
        """Note that a decision is complete."""
        self._decision += 1

    def read_completed(self) -> None:
        """Note that a DecisionTaskCompleted was read, before its decision is repeated."""
        self._read += 1

    def read_marker(self, marker: MarkerRecorded) -> None:
        """Note the marker of a patch, which follows the DecisionTaskCompleted of its decision."""
        self._first.setdefault(marker.function, self._read)

    def patched(self, patch: str) -> bool:
        """Return whether the code has a patch in this decision, and record that in a new one.

        Raises UsageError for an invalid id.
        """
        if not check_text(patch, "the id of a patch", "a text such as 'check-stock'") or len(patch) > ID_LIMIT:
            raise UsageError(f"the id of a patch has 1 to {ID_LIMIT} characters; it has {len(patch)}")
        first = self._first.get(patch)
        if first is not None:
            return first <= self._decision
        if not self._live:
            return False
        self._first[patch] = self._decision
        self._issue(RecordMarker(len(self._first), MarkerName.PATCH, native=True, function=patch))
        return True
