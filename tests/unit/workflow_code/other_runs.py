"""The other runs of a fake node: children, and runs that get signals and cancel requests. They are only played.

The requests of a run are done in the order of their causes, by the rules of the core; a child ends when the world says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.client.payload import encode_result
from mainspring.jobs.model import JobFailure
from mainspring.workflows import history as h
from mainspring.workflows.cross_run import CancelOther, EndChild, SignalOther, StartChild
from mainspring.workflows.model import Definition
from mainspring.workflows.other_runs import child_ended, child_refused, child_started, external_answered

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from mainspring.workflows.cross_run import Errand
    from mainspring.workflows.draft import Draft


class OtherRuns:
    """Other runs, whose answers and ends are random.

    ``registered`` are the workflows that may be started as children; None: any.
    """

    def __init__(self, chance: random.Random, registered: Iterable[str] | None = None) -> None:
        self._chance = chance
        self.definitions = None if registered is None else {(name, ""): Definition(name) for name in registered}
        self.errands: list[Errand] = []
        """Requests that have no answer, in order."""
        self.asked: set[int] = set()
        """Children that were asked to cancel themselves."""
        self.closed: set[int] = set()
        """Children that have ended. Their parent may have closed before."""

    def do(self, draft: Draft, number: int) -> None:
        """Do the first requests."""
        done, self.errands[:] = self.errands[:number], self.errands[number:]
        for errand in done:
            if errand.source == draft.state.run:  # nobody has the answers of a run that has closed
                self._do(draft, errand)

    def _do(self, draft: Draft, errand: Errand) -> None:
        event: Any
        match errand:
            case StartChild(initiated=event):
                names = {"type": event.type, "version": event.version}
                is_named = event.workflow_id != draft.handle_of(event.run)
                if is_named and self._chance.random() < 0.5:
                    completed = event.decision_completed
                    child_refused(
                        draft, event.id, **names, decision_completed=completed, cause="WORKFLOW_ALREADY_RUNNING"
                    )
                    self.closed.add(event.run)
                else:
                    child_started(draft, event.id, **names)
            case SignalOther(initiated=event):
                done, failed = h.ExternalWorkflowExecutionSignaled, h.SignalExternalWorkflowExecutionFailed
                self._answer(draft, event, done, failed)
            case CancelOther(initiated=event):
                reached = self._answer(
                    draft,
                    event,
                    h.ExternalWorkflowExecutionCancelRequested,
                    h.RequestCancelExternalWorkflowExecutionFailed,
                )
                if reached:
                    self.asked.add(event.run)
            case EndChild():
                pass  # the run itself is a child of nobody
            case _:
                raise AssertionError(f"nobody terminates runs here: {errand}")

    def _answer(self, draft: Draft, event: Any, done: type[h.Event], failed: type[h.Event]) -> bool:
        """Record the answer to a request. Return whether the other run is open."""
        is_open = bool(event.run or event.workflow_id != "nobody") and event.run not in self.closed
        attributes: dict[str, Any] = {"workflow_id": event.workflow_id, "run": event.run}
        if not is_open:
            attributes |= {
                "decision_completed": event.decision_completed,
                "cause": "UNKNOWN_EXTERNAL_WORKFLOW_EXECUTION",
            }
        external_answered(draft, event.id, done if is_open else failed, **attributes)
        return is_open

    def end(self, draft: Draft, initiated: int) -> None:
        """End a child at random: one that was asked to cancel itself mostly does."""
        child = draft.state.children[initiated]
        kind, attributes = self._end_of(cancels=child.run in self.asked)
        assert child_ended(draft, initiated, kind, type=child.type, version="1", **attributes)
        self.closed.add(child.run)

    def _end_of(self, *, cancels: bool) -> tuple[type[h.Event], dict[str, Any]]:
        chance = self._chance
        if chance.random() < (0.7 if cancels else 0.05):
            return h.ChildWorkflowExecutionCanceled, {}
        match chance.randrange(10):
            case 0 | 1:
                details = msgspec.json.encode(JobFailure("ValueError", "it failed"))
                return h.ChildWorkflowExecutionFailed, {"reason": "ValueError", "details": details}
            case 2:
                return h.ChildWorkflowExecutionTimedOut, {}
            case 3:
                return h.ChildWorkflowExecutionTerminated, {"reason": "enough" * chance.randrange(2)}
            case _:
                return h.ChildWorkflowExecutionCompleted, {"result": encode_result(chance.randrange(1000))}
