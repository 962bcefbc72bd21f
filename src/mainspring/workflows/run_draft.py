"""A run in one transaction: its row and state with the draft of its changes, and what the transaction began with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from mainspring.workflows.model import Status
from mainspring.workflows.observer import Changed
from mainspring.workflows.parking import decision_lost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.jobs.owners import Ended
    from mainspring.workflows.cache import Run
    from mainspring.workflows.draft import Draft
    from mainspring.workflows.history import Event
    from mainspring.workflows.store import RunRow


class RunDraft:
    """A run that is open at the begin of a transaction, or begins in it, with its draft."""

    __slots__ = (
        "about",
        "completed",
        "draft",
        "earlier",
        "ended",
        "fresh",
        "guard",
        "parked_us",
        "parking",
        "replaced",
        "run",
        "size",
        "timed",
    )

    def __init__(self, run: Run, draft: Draft, *, fresh: bool = False, timed: bool = True) -> None:
        self.run = run
        self.draft = draft
        self.fresh = fresh
        """Whether it begins in this transaction."""
        self.timed = timed
        """Whether the node has given a time for the changes; otherwise the draft has that of the run's last decision."""
        self.guard = run.row.events
        """The number of events before the transaction."""
        self.size = run.row.history_bytes
        """The bytes of the history before the transaction."""
        self.about = run.row.about
        self.parking = parking_mark(run.row)
        self.parked_us = run.row.parked_us
        """Since when it is parked, before the transaction."""
        self.earlier: tuple[int, Sequence[Event]] | None = None
        """The events after a number that the store had before the transaction, if they were read."""
        self.ended: Ended | None = None
        """The end of the decision task's job in this transaction."""
        self.completed = False
        """Whether a completion has used the decision task's job."""
        self.replaced = False
        """Whether a completion goes on with the run: if the task's job is replaced, its worker is not asked to stop."""

    @property
    def events(self) -> list[Event]:
        """Return the events of the transaction so far."""
        return cast("list[Event]", self.draft.events)

    @property
    def is_open(self) -> bool:
        """Return whether the run is open so far."""
        return self.run.state.status == 0


def parking_mark(row: RunRow) -> tuple[Any, ...]:
    """Return a value that changes with the parking of a run."""
    parking = row.parking
    return parking.parked_us, parking.losses, parking.retry_us, parking.builds, parking.parked


def finish(found: RunDraft) -> bool:
    """Complete the row of a run as far as its state gives it; return whether the run has changed."""
    run, draft = found.run, found.draft
    row, state = run.row, run.state
    if found.ended is not None:
        row.decision = 0
        if not found.completed:
            decision_lost(draft, found.ended)
    if state.status and row.status.open:
        row.status = Status(state.status)
        # Not the time of the event, which may lie ahead: the retention counts from it.
        row.closed_us = min(state.closed_us, draft.now_us)
    return (
        bool(draft.events) or found.ended is not None or found.about != row.about or found.parking != parking_mark(row)
    )


def change_of(found: RunDraft) -> Changed:
    """Return the notice about a run for the observers."""
    row = found.run.row
    return Changed(
        row.id,
        row.root,
        row.namespace,
        row.type,
        row.version,
        row.status,
        row.events,
        row.history_bytes,
        row.due_us,
        row.parked_us,
        row.decision,
        row.events - found.guard,
        row.history_bytes - found.size,
        row.parked if row.parked_us != found.parked_us else None,
        found.parked_us > 0,
        row.about if row.about != found.about else b"",
    )
