"""One transaction's changes of one run.

Rules append events to a draft. Each is applied to the state at once, so that the next rule, also of another operation of the same
transaction, decides on the state so far. The state must not be used any more if the transaction fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from mainspring.workflows.fold import apply
from mainspring.workflows.history import ActivityTaskScheduled, EventBase
from mainspring.workflows.state import Parking

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mainspring.workflows.errands import Errand
    from mainspring.workflows.model import Definition, Limits
    from mainspring.workflows.state import State

E = TypeVar("E", bound=EventBase)


class Draft:
    """The new events of a run and their effects on jobs, which the caller writes."""

    __slots__ = (
        "base",
        "brought",
        "cancels",
        "definitions",
        "errands",
        "events",
        "handle_of",
        "limits",
        "new_run",
        "next_id",
        "now_us",
        "parking",
        "state",
        "submitted",
        "withdrawn",
    )

    def __init__(
        self,
        state: State,
        *,
        now_us: int,
        next_id: Callable[[], int],
        limits: Limits,
        parking: Parking | None = None,
        errands: list[Errand] | None = None,
        handle_of: Callable[[int], str] = str,
    ) -> None:
        self.state = state
        self.parking = Parking() if parking is None else parking
        self.now_us = now_us
        """The node's time. Timers and timeouts run from it and are due by it, whatever the times of earlier events are."""
        self.next_id = next_id
        """Returns the id of a new job."""
        self.new_run = 0
        """The id of the run that continues this one, if the caller has chosen it; 0: ``next_id`` returns it."""
        self.limits = limits
        self.base = state.last
        """The last event before this transaction."""
        self.events: list[EventBase] = []
        self.submitted: dict[int, ActivityTaskScheduled] = {}
        """The new jobs, by their ids."""
        self.withdrawn: list[int] = []
        """Jobs to be deleted in any state, because their activities or the run have closed otherwise."""
        self.cancels: list[int] = []
        """The activities whose jobs a decision asks to cancel, by their Scheduled events. A job that is not held ends at once:
        `decisions.activity.canceled_before_start` records it. The request is noted in the row of another one."""
        self.errands: list[Errand] = [] if errands is None else errands
        """The errands of all runs of the transaction, in the order of their causes."""
        self.handle_of = handle_of
        """Returns the handle of a job: the workflow id of a child without another one."""
        self.definitions: Mapping[tuple[str, str], Definition] | None = None
        """The workflows that a completion starts as children, by name and the version that it gives. A missing one is not
        registered. None: any may be started."""
        self.brought: dict[int, int] = {}
        """The number of events that the end of each job has added."""

    def record(self, kind: type[E], **attributes: object) -> E:
        """Append an event and apply it; raise IllegalTransitionError if it is not legal.

        Its time is not before that of the run's last event, which may lie ahead if the clock was stepped back.
        """
        state = self.state
        event = kind(state.last + 1, max(self.now_us, state.last_us), **attributes)
        apply(state, event)
        self.events.append(event)
        return event

    @property
    def timed_from_us(self) -> int:
        """Return the time from which a new event's timeouts run, if it is not the event's own; 0 if it is."""
        return self.now_us if self.now_us < self.state.last_us else 0

    def withdraw(self, job: int) -> None:
        """Delete a job, or do not submit it at all."""
        if job and self.submitted.pop(job, None) is None:
            self.withdrawn.append(job)
