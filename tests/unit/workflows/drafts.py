"""A run of a test: each request is a transaction of its own, as a store makes them."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from mainspring.jobs.model import State as JobState
from mainspring.jobs.owners import Ended
from mainspring.workflows import execution
from mainspring.workflows.activities import activity_ended
from mainspring.workflows.draft import Draft
from mainspring.workflows.execution import complete
from mainspring.workflows.model import Key, Limits, Parking, State
from mainspring.workflows.requests import Completion, Reached, Ruling, Signal
from mainspring.workflows.timeouts import ring

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.workflows.history import Event
    from mainspring.workflows.requests import Decision

SECOND = 1_000_000
BEGIN = 1_700_000_000 * SECOND
JOB = 77
"""The decision task's job."""


class Run:
    """A run with its whole history."""

    def __init__(self, *, limits: Limits | None = None, full: bool = False, **attributes: Any) -> None:
        self.state = State()
        self.parking = Parking()
        self.events: list[Event] = []
        self.now_us = BEGIN
        self.limits = limits or Limits()
        self._ids = count(1001)
        self.last_draft = self.draft()
        execution.begin_run(
            self.last_draft,
            type="order",
            version="1",
            input=b"",
            run=17,
            root=17,
            workflow_id="order-17",
            full=full,
            **attributes,
        )
        self.commit(self.last_draft)

    def draft(self) -> Draft:
        return Draft(
            self.state,
            now_us=self.now_us,
            next_id=lambda: next(self._ids),
            limits=self.limits,
            parking=self.parking,
        )

    def commit(self, draft: Draft) -> None:
        self.events += draft.events
        self.last_draft = draft

    def do(self, rule: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Apply one rule in a transaction."""
        draft = self.draft()
        outcome = rule(draft, *arguments, **named)
        self.commit(draft)
        return outcome

    def signal(self, name: str = "approved", request: int = 0) -> Reached:
        answer: Reached = self.do(execution.signal, Signal(Key(run=17), name, b"", request))
        return answer

    def decide(self, *decisions: Decision, seen: int = 0, **attributes: Any) -> Ruling:
        """Complete the decision task; the decider has all events if nothing else is given."""
        completion = Completion(17, JOB, seen or self.state.last, decisions=decisions, **attributes)
        ruling: Ruling = self.do(complete, completion)
        return ruling

    def decide_full(self, *decisions: Decision) -> Ruling:
        """Complete the started decision task of a full history."""
        ruling: Ruling = self.do(complete, Completion(17, seen=self.state.started, decisions=decisions))
        return ruling

    def fuse(self, *decisions: Decision, ends: Sequence[Ended], seen: int = 0, **attributes: Any) -> Ruling:
        """Settle activities and decide."""
        draft = self.draft()
        seen = seen or self.state.last
        for ended in ends:
            activity_ended(draft, self.scheduled(ended.id), ended)
        settled = [ended.id for ended in ends]
        ruling = complete(draft, Completion(17, seen=seen, decisions=decisions, settled=settled, **attributes))
        self.commit(draft)
        return ruling

    def end(self, ended: Ended) -> bool:
        late: bool = self.do(activity_ended, self.scheduled(ended.id), ended)
        return late

    def scheduled(self, job: int) -> int:
        return next((event.id for event in self.events if getattr(event, "job", 0) == job), 0)

    def ring(self, after: float = 0, started: Sequence[int] = ()) -> None:
        """Let seconds pass, and record what is due."""
        self.now_us += int(after * SECOND)
        self.do(ring, started)

    @property
    def recorded(self) -> list[str]:
        """The last transaction's events: their numbers and names."""
        return [f"{event.id} {type(event).__name__}" for event in self.last_draft.events]


def ended(
    job: int,
    state: JobState = JobState.SUCCEEDED,
    *,
    term: int = 3,
    attempt: int = 1,
    result: bytes = b"",
    error: bytes = b"",
) -> Ended:
    """Return the end of a job, which a worker has had unless ``term`` and ``attempt`` are 0."""
    return Ended(job, state, term, attempt, "w1", 0, 0, error, None, result)
