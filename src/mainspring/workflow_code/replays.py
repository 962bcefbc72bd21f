"""Replays of whole histories, to compare code with what earlier code has recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.workflow_code.instance import Instance
from mainspring.workflow_code.matching import Mismatch
from mainspring.workflow_code.model import EndOfHistory
from mainspring.workflows.history import DecisionTaskCompleted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.workflow_code.model import Code
    from mainspring.workflows.history import Event
    from mainspring.workflows.model import Limits, Parked


class Replayed(NamedTuple):
    """The outcome of a replay."""

    events: int
    decisions: int
    """The recorded decisions."""
    difference: Parked | None
    """The first difference between the history and the code; None: they agree."""


def replay(code: Code, events: Sequence[Event], limits: Limits | None = None) -> Replayed:
    """Compare the code of a workflow with a history from its first event on.

    It executes nothing: neither steps nor side effects. It therefore ends where code would do something that is not recorded,
    such as the work of a decision that no worker has completed.
    """
    instance = _ReplayedInstance(code, getattr(events[0], "run", 0), limits=limits)
    try:
        difference = instance.compare(events)
    finally:
        instance.evict()
    return Replayed(len(events), sum(type(event) is DecisionTaskCompleted for event in events), difference)


class _ReplayedInstance(Instance):
    """A run that makes no new decision."""

    def compare(self, events: Sequence[Event]) -> Parked | None:
        """Replay the whole history. Return the first difference."""
        self.only_replays = True
        try:
            self._take(events)
            if self._parked is None:
                self._resolve_markers()
        except Mismatch as found:
            self._parked = self._commands.park(found, ())
        except EndOfHistory:
            pass
        finally:
            self._activation.end()
        return self._parked
