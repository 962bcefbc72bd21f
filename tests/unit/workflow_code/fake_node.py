"""One run for tests of workflow code: its history by the rules of the core, and a worker without I/O."""

from __future__ import annotations

import json
import random
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.client.payload import Signature, encode_result
from mainspring.jobs.model import JobFailure
from mainspring.jobs.model import State as JobState
from mainspring.jobs.owners import Ended
from mainspring.resources.holds import Holder, HolderKind
from mainspring.workflow_code.instance import Instance
from mainspring.workflow_code.model import PARK_ON, Code, StepOutcome, Turn
from mainspring.workflows import (
    execution,
    other_runs,
)
from mainspring.workflows import history as h
from mainspring.workflows.activities import activity_ended, canceled_before_start
from mainspring.workflows.cross_run import answer_errand
from mainspring.workflows.draft import Draft
from mainspring.workflows.execution import complete
from mainspring.workflows.model import Key, Limits, Parking, State
from mainspring.workflows.requests import Completion, ContinueAsNewWorkflowExecution, Ruling, Signal
from mainspring.workflows.run_holds import answered
from mainspring.workflows.timeouts import ring

from .other_runs import OtherRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mainspring.resources.holds import HoldAnswer
    from mainspring.workflows.carrying import Carried
    from mainspring.workflows.requests import StepResult

START_US = 1_700_000_000_000_000
SECOND = 1_000_000
_JOB = 99
"""The decision task's job."""


def code_of(call: Callable[..., Any], park_on: Any = PARK_ON) -> Code:
    return Code(call.__name__, "1", call, Signature(call, call.__name__), park_on)


class FakeNode:
    """The history of one run. Each method is one transaction."""

    def __init__(
        self,
        payload: bytes = b"",
        seed: int = 7,
        limits: Limits | None = None,
        others: OtherRuns | None = None,
        after: FakeNode | None = None,
        carried: Sequence[Carried] = (),
    ) -> None:
        """Begin a run with a payload, or, if ``after`` has closed so, the run that continues it.

        ``carried``: the results that it takes over as a rerun.
        """
        self.limits = limits or Limits()
        self.others = others or OtherRuns(random.Random(seed))
        """The runs that get this one's requests."""
        self.state = State()
        self.parking = Parking()
        self.events: list[Any] = []
        self.commits: list[int] = []
        """The last events of the transactions."""
        self.now_us = START_US
        self.closed: Any = None
        """The event that closed the run."""
        self.withdrawn: list[int] = []
        """The jobs that were deleted."""
        self.unread: Sequence[int] = ()
        """The signals that the code had not received when it continued as new."""
        self.ids: Iterator[int] = count(1001) if after is None else after.ids
        draft = self._draft()
        if after is None:
            execution.begin_run(
                draft,
                type="test",
                version="1",
                input=payload,
                run=1,
                root=1,
                workflow_id="w-1",
                seed=seed,
                timeout=0,
                carried=carried,
            )
        else:
            draft.now_us = self.now_us = after.now_us
            along = other_runs.carried(after.events, after.unread, after.state.seen)
            other_runs.begin_next(draft, after.state, after.closed, along)
        self._commit(draft)

    def _draft(self) -> Draft:
        draft = Draft(
            self.state,
            now_us=self.now_us,
            next_id=lambda: next(self.ids),
            limits=self.limits,
            parking=self.parking,
            errands=self.others.errands,
        )
        draft.definitions = self.others.definitions
        return draft

    def _commit(self, draft: Draft) -> None:
        self.events += draft.events
        self.withdrawn += draft.withdrawn
        if draft.events:
            self.commits.append(self.state.last)
        if self.state.status and self.closed is None:
            self.closed = self.events[-1]

    @property
    def decision_waits(self) -> bool:
        return bool(self.state.scheduled) and not self.state.status

    # ---- what happens outside ----

    def signal(self, name: str, value: Any = None) -> None:
        draft = self._draft()
        execution.signal(draft, Signal(Key(run=1), name, b"" if value is None else json.dumps(value).encode()))
        self._commit(draft)

    def answer_hold(self, number: int, answer: HoldAnswer) -> None:
        """Answer a request for slots of resources."""
        draft = self._draft()
        answered(draft, answer_errand(Holder(HolderKind.RUN, 1, number), answer))
        self._commit(draft)

    def request_cancel(self, reason: str = "") -> None:
        draft = self._draft()
        execution.request_cancel(draft, reason=reason)
        self._commit(draft)

    @property
    def activities(self) -> dict[str, h.ActivityTaskScheduled]:
        """The open activities by their ids."""
        return {one.activity_id: self.events[one.scheduled - 1] for one in self.state.activities.values()}

    def cancelling(self, activity_id: str) -> bool:
        return bool(self.state.activities[self.state.activity_ids[activity_id]].cancel_requested)

    def end_activity(self, *activity_ids: str, result: Any = None, error: str = "", attempt: int = 1) -> None:
        """End activities in one transaction. Those whose cancellation was requested end as cancelled."""
        draft = self._draft()
        for activity_id in activity_ids:
            activity = self.state.activities[self.state.activity_ids[activity_id]]
            state, data, details = JobState.SUCCEEDED, encode_result(result), b""
            if activity.cancel_requested:
                state, data = JobState.CANCELLED, b""
            elif error:
                state, data = JobState.FAILED, b""
                details = msgspec.json.encode(JobFailure(error, "it failed"))
            ended = Ended(activity.job, state, 3, attempt, "w", 0, 0, details, None, data)
            assert activity_ended(draft, activity.scheduled, ended)
        self._commit(draft)

    @property
    def children(self) -> list[int]:
        """The open children that have begun, by the events that initiated them."""
        return [child.initiated for child in self.state.children.values() if child.started]

    def do_errands(self, number: int) -> None:
        """Do the first requests to other runs in one transaction."""
        draft = self._draft()
        self.others.do(draft, number)
        self._commit(draft)

    def end_children(self, *initiated: int) -> None:
        """End children in one transaction, in this order."""
        draft = self._draft()
        for one in initiated:
            self.others.end(draft, one)
        self._commit(draft)

    def due(self) -> list[str]:
        """Return the timers in the order of their times."""
        return sorted(
            self.state.timers, key=lambda key: (self.state.timers[key].fire_us, self.state.timers[key].started)
        )

    def fire(self) -> None:
        """Let the time of the next timer come."""
        self.now_us = max(self.now_us, self.state.timers[self.due()[0]].fire_us)
        draft = self._draft()
        ring(draft)
        self._commit(draft)

    def wait(self, seconds: float) -> None:
        """Let time pass, and the alarms of it ring."""
        self.now_us += int(seconds * SECOND)
        draft = self._draft()
        ring(draft)
        self._commit(draft)

    # ---- completions ----

    def complete(
        self,
        run: Instance,
        decisions: Sequence[Any] = (),
        steps: Sequence[StepResult] = (),
        *,
        more: bool = False,
        hold: bool = False,
        errands: int = 0,
    ) -> Ruling:
        """Record a completion. ``hold``: workers have the activities that it cancels. ``errands``: how many requests to other
        runs are done in the same transaction.
        """
        if decisions and isinstance(decisions[-1], ContinueAsNewWorkflowExecution):
            self.unread = decisions[-1].unread
        draft = self._draft()
        ruling = complete(
            draft,
            Completion(
                1,
                _JOB,
                run.seen,
                now_us=run.now_us,
                batch=run.batch,
                steps=steps,
                decisions=decisions,
                more=more,
                semantics=run.semantics,
            ),
        )
        for scheduled in () if hold else draft.cancels:
            canceled_before_start(draft, scheduled)
        self.others.do(draft, errands)
        self._commit(draft)
        return ruling


class FakeWorker:
    """Drives one run: each call of a method is one step of a worker."""

    def __init__(self, code: Code, node: FakeNode, tasks: dict[str, Callable[..., Any]] | None = None) -> None:
        self.code = code
        self.node = node
        self.tasks = tasks or {}
        self.instance = Instance(code, 1)
        self.running: dict[int, Any] = {}
        self.decides = False
        """Whether a decision is open, because steps run. Steps run on without one where a close was refused."""
        self.turns: list[Turn] = []
        self.executed: list[tuple[str, Any]] = []
        self.hold = False
        self.errands = 0
        """How many requests to other runs are done with the next completion."""

    def decide(self) -> Turn:
        """Make a decision with all events of the node, and record it."""
        return self.finish_turn(self.decide_only())

    def decide_only(self) -> Turn:
        """Make a decision with all events of the node, without recording it."""
        return self.instance.deliver(self.node.events[self.instance.position :], self.node.now_us)

    def finish_turn(self, turn: Turn) -> Turn:
        """Record a turn as a worker does, and make the next decision at once if steps run on."""
        self.turns.append(turn)
        if turn.parked:
            return turn
        instance = self.instance
        for number in turn.stop:
            self.running.pop(number, None)
        goes_on = self.decides = turn.waits and not turn.finished
        if turn.decisions or turn.steps or not goes_on:
            ruling = self.node.complete(
                instance, turn.decisions, turn.steps, more=goes_on, hold=self.hold, errands=self.errands
            )
            assert ruling.verdict == "recorded", ruling
        fresh = self.node.events[instance.position :]
        instance.recorded(fresh)
        self.running |= {call.number: call for call in turn.start}
        if goes_on and any(isinstance(event, h.DecisionTaskCompleted) for event in fresh):
            following = instance.deliver((), self.node.now_us)
            if following != Turn(waits=True):
                return self.finish_turn(following)
        return turn

    def end_steps(self, *numbers: int) -> Turn:
        """Run steps, by default all, and give their results in one batch."""
        outcomes = []
        for number in numbers or tuple(self.running):
            call = self.running.pop(number)
            args, kwargs = call.signature.decode(call.payload)
            self.executed.append((call.name, args))
            try:
                outcomes.append(StepOutcome(number, encode_result(call.call(*args, **kwargs))))
            except Exception as error:  # noqa: BLE001
                details = msgspec.json.encode(JobFailure(type(error).__name__, str(error)))
                outcomes.append(StepOutcome(number, details, failed=True))
        return self.finish_turn(self.instance.step_ended(outcomes))

    def restart(self) -> None:
        """Lose the worker's memory."""
        self.instance.evict()
        self.instance = Instance(self.code, 1)
        self.running.clear()
        self.decides = False

    def do_activity(self, activity_id: str) -> None:
        """Execute an activity."""
        event = self.node.activities[activity_id]
        args = json.loads(event.input) if event.input else []
        try:
            result = self.tasks[event.function.decode()](*args)
        except Exception as error:  # noqa: BLE001
            self.node.end_activity(activity_id, error=type(error).__name__)
        else:
            self.node.end_activity(activity_id, result=result)

    def until_closed(self) -> Any:
        """Go on until the run is closed: steps first, then activities, then timers. Return the closing event."""
        node = self.node
        turn = self.decide()
        for _ in range(10_000):
            if node.closed is not None:
                return node.closed
            assert turn.parked is None
            if self.running:
                turn = self.end_steps()
                continue
            if not node.decision_waits:
                if node.activities:
                    self.do_activity(next(iter(node.activities)))
                else:
                    node.fire()
            turn = self.decide()
        raise AssertionError("the run does not end")
