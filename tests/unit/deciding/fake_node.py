"""A tiny node for tests of workflow code: it keeps one history and applies completions to it by simple rules."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.client.payload import Signature, encode_result
from mainspring.deciding.instance import Instance
from mainspring.deciding.model import PARK_ON, Code, StepOutcome, Turn
from mainspring.jobs.failures import JobFailure
from mainspring.workflows import history as h
from mainspring.workflows.decisions import model as d

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

START_US = 1_700_000_000_000_000
SECOND = 1_000_000


def code_of(call: Callable[..., Any], park_on: Any = PARK_ON) -> Code:
    return Code(call.__name__, "1", call, Signature(call, call.__name__), park_on)


class FakeNode:
    """The history of one run, and its open things."""

    def __init__(self, payload: bytes = b"", seed: int = 7) -> None:
        self.events: list[Any] = []
        self.now_us = START_US
        self.seen = 0
        """The last event that the last completed decision was given."""
        self.started = 0
        self.activities: dict[str, tuple[int, d.ScheduleActivityTask]] = {}
        self.timers: dict[str, tuple[int, int]] = {}
        self.cancelling: set[str] = set()
        self.closed: Any = None
        self._inside: bool = False
        self.commits: list[int] = []
        """The last events of the transactions."""
        self.add(h.WorkflowExecutionStarted, "test", "1", payload, seed=seed, workflow_id="w-1", run=1)

    @property
    def last(self) -> int:
        return len(self.events)

    def add(self, kind: Any, *values: Any, **named: Any) -> int:
        self.events.append(kind(self.last + 1, self.now_us, *values, **named))
        if not self._inside:
            self.commits.append(self.last)
        return self.last

    # ---- what happens outside ----

    def signal(self, name: str, value: Any = None) -> None:
        self.add(h.WorkflowExecutionSignaled, name, b"" if value is None else json.dumps(value).encode())

    def request_cancel(self, reason: str = "") -> None:
        self.add(h.WorkflowExecutionCancelRequested, reason=reason)

    def end_activity(self, activity_id: str, result: Any = None, error: str = "", attempt: int = 1) -> None:
        scheduled, _ = self.activities.pop(activity_id)
        self._inside = True
        try:
            self._end_activity(activity_id, scheduled, result, error, attempt)
        finally:
            self._commit()

    def _end_activity(self, activity_id: str, scheduled: int, result: Any, error: str, attempt: int) -> None:
        if activity_id in self.cancelling:
            self.add(h.ActivityTaskCanceled, scheduled, 0)
            return
        started = self.add(h.ActivityTaskStarted, scheduled, attempt=attempt)
        if error:
            details = msgspec.json.encode(JobFailure(error, "it failed"))
            self.add(h.ActivityTaskFailed, scheduled, started, error, details)
        else:
            self.add(h.ActivityTaskCompleted, scheduled, started, encode_result(result))

    def due(self) -> list[str]:
        """Return the timers in the order of their times."""
        return sorted(self.timers, key=lambda key: (self.timers[key][1], self.timers[key][0]))

    def fire(self, timer_id: str) -> None:
        started, fire_us = self.timers.pop(timer_id)
        self.now_us = max(self.now_us, fire_us)
        self.add(h.TimerFired, timer_id, started)

    # ---- completions ----

    def _begin_decision(self) -> None:
        if not self.started:
            self.started = self.add(h.DecisionTaskStarted, 0)

    def record_steps(self, run: Instance, steps: Sequence[d.StepResult]) -> None:
        """Record results under the open decision."""
        self._inside = True
        self._begin_decision()
        for one in steps:
            self.add(
                h.MarkerRecorded,
                0,
                "step",
                one.result,
                native=True,
                number=one.number,
                batch=one.batch,
                seen=run.seen,
                now_us=run.now_us,
                digest=one.digest,
                attempt=one.attempt,
                failed=one.failed,
                function=one.function,
            )
        self._commit()

    def _commit(self) -> None:
        self._inside = False
        if self.commits[-1] != self.last:
            self.commits.append(self.last)

    def complete(
        self, run: Instance, decisions: Sequence[Any], steps: Sequence[d.StepResult] = (), *, unseen: bool = False
    ) -> None:
        """Record a completed decision."""
        assert self.closed is None
        self.record_steps(run, steps)
        if steps:
            self.commits.pop()
        self._inside = True
        self._begin_decision()
        done = self.add(h.DecisionTaskCompleted, 0, self.started, seen=run.seen, now_us=run.now_us, batch=run.batch)
        self.started = 0
        self.seen = run.seen
        for place, one in enumerate(decisions):
            assert not self._apply(one, done, unseen) or place == len(decisions) - 1, "a close is the last decision"
        self._commit()

    def _apply(self, one: Any, done: int, unseen: bool) -> bool:
        number = one.number
        match one:
            case d.ScheduleActivityTask():
                assert one.activity_id == str(number)
                assert one.activity_id not in self.activities
                event = self.add(
                    h.ActivityTaskScheduled, done, one.activity_id, one.function, input=one.input, number=number
                )
                self.activities[one.activity_id] = (event, one)
            case d.RequestCancelActivityTask(activity_id=key):
                if key in self.activities:
                    self.add(h.ActivityTaskCancelRequested, done, key)
                    self.cancelling.add(key)
                else:
                    self.add(h.RequestCancelActivityTaskFailed, done, key, "ACTIVITY_ID_UNKNOWN")
            case d.StartTimer():
                fire_us = self.now_us + round(one.start_to_fire * SECOND)
                event = self.add(h.TimerStarted, done, one.timer_id, one.start_to_fire, number=number)
                self.timers[one.timer_id] = (event, fire_us)
            case d.CancelTimer(timer_id=key):
                if key in self.timers:
                    self.add(h.TimerCanceled, done, key, self.timers.pop(key)[0])
                else:
                    self.add(h.CancelTimerFailed, done, key, "TIMER_ID_UNKNOWN")
            case d.RecordMarker():
                self.add(
                    h.MarkerRecorded,
                    done,
                    one.name,
                    one.details,
                    native=one.native,
                    number=number,
                    digest=one.digest,
                    failed=one.failed,
                    function=one.function,
                )
            case d.CompleteWorkflowExecution() if unseen:
                self.add(h.CompleteWorkflowExecutionFailed, done, "UNHANDLED_DECISION")
                return True
            case d.FailWorkflowExecution() if unseen:
                self.add(h.FailWorkflowExecutionFailed, done, "UNHANDLED_DECISION")
                return True
            case d.CancelWorkflowExecution() if unseen:
                self.add(h.CancelWorkflowExecutionFailed, done, "UNHANDLED_DECISION")
                return True
            case d.CompleteWorkflowExecution():
                self.add(h.WorkflowExecutionCompleted, done, one.result)
                self.closed = one
                return True
            case d.FailWorkflowExecution():
                self.add(h.WorkflowExecutionFailed, done, one.reason, one.details)
                self.closed = one
                return True
            case d.CancelWorkflowExecution():
                self.add(h.WorkflowExecutionCanceled, done, one.details)
                self.closed = one
                return True
            case _:
                raise AssertionError(one)
        return False


class FakeWorker:
    """Drives one run: each call of a method is one step of a worker."""

    def __init__(self, code: Code, node: FakeNode, tasks: dict[str, Callable[..., Any]] | None = None) -> None:
        self.code = code
        self.node = node
        self.tasks = tasks or {}
        self.instance = Instance(code, 1)
        self.running: dict[int, Any] = {}
        self.turns: list[Turn] = []
        self.executed: list[tuple[str, Any]] = []

    def decide(self) -> Turn:
        """Make a decision with all events of the node, and record it."""
        turn = self.instance.deliver(self.node.events[self.instance.position :], self.node.now_us)
        return self.finish_turn(turn)

    def decide_only(self) -> Turn:
        """Make a decision with all events of the node, without recording it."""
        return self.instance.deliver(self.node.events[self.instance.position :], self.node.now_us)

    def finish_turn(self, turn: Turn) -> Turn:
        self.turns.append(turn)
        if turn.parked:
            return turn
        unseen = any(not _noise(e) for e in self.node.events[self.instance.seen :] if e.id > self.instance.position)
        position = self.instance.position
        if turn.decisions or not turn.waits:
            self.node.complete(self.instance, turn.decisions, turn.steps, unseen=unseen)
        elif turn.steps:
            self.node.record_steps(self.instance, turn.steps)
        self.instance.recorded(self.node.events[position:])
        for number in turn.stop:
            self.running.pop(number, None)
        self.running |= {call.number: call for call in turn.start}
        if (turn.decisions or not turn.waits) and turn.waits:
            return self.finish_turn(self.instance.deliver((), self.node.now_us)) if not self._idle() else turn
        return turn

    def _idle(self) -> bool:
        return False

    def end_steps(self, *numbers: int) -> Turn:
        """Run the steps, and give their results in one batch."""
        outcomes = []
        for number in numbers or tuple(self.running):
            call = self.running.pop(number)
            args, kwargs = call.signature.decode(call.payload)
            self.executed.append((call.name, args))
            try:
                result = encode_result(call.call(*args, **kwargs))
                outcomes.append(StepOutcome(number, result))
            except Exception as error:  # noqa: BLE001
                details = msgspec.json.encode(JobFailure(type(error).__name__, str(error)))
                outcomes.append(StepOutcome(number, details, failed=True))
        return self.finish_turn(self.instance.step_ended(outcomes))

    def restart(self) -> None:
        """Lose the worker's memory."""
        self.instance.evict()
        self.instance = Instance(self.code, 1)
        self.running.clear()

    def until_closed(self) -> Any:
        """Go on until the run is closed: steps first, then activities, then timers."""
        self.decide()
        for _ in range(10_000):
            node = self.node
            if node.closed is not None:
                return node.closed
            if self.running:
                self.end_steps()
                continue
            if node.activities:
                key, (_, command) = next(iter(node.activities.items()))
                try:
                    args = json.loads(command.input) if command.input else []
                    node.end_activity(key, self.tasks[command.function.decode()](*args))
                except Exception as error:  # noqa: BLE001
                    node.end_activity(key, error=type(error).__name__)
            elif node.timers:
                node.fire(node.due()[0])
            turn = self.decide()
            if turn.parked:
                raise AssertionError(turn.parked)
        raise AssertionError("the run does not end")


def _noise(event: Any) -> bool:
    return isinstance(event, (h.DecisionTaskStarted, h.DecisionTaskCompleted, h.MarkerRecorded))
