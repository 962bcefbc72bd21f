"""One run in a worker: its code, and how far it has got in its history.

A decision begins with an activation: the code is given the events up to ``seen``, at the time ``now_us``, which resolve the
futures that it waits for. Each batch of results of local steps is another activation. The markers of the results and the event
DecisionTaskCompleted have the decision's ``seen`` and ``now_us``, so a replay makes the same activations. A decision that was
lost after it had recorded steps is resumed in this way too. The next decision gives the code the events that have come in
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from mainspring.client.payload import encode_result
from mainspring.errors import JobFailed, JobTimedOut, PayloadError
from mainspring.workflow_code import guards
from mainspring.workflow_code.activation import Activation, CommandLog
from mainspring.workflow_code.api import Calls, Patches
from mainspring.workflow_code.carried import CarriedResults
from mainspring.workflow_code.children import Children
from mainspring.workflow_code.endings import close_of, defect_of, release, same_close, throw_evicted
from mainspring.workflow_code.loop import DurableTimer, WorkflowLoop, check_timer
from mainspring.workflow_code.mapping import is_part, run_part
from mainspring.workflow_code.matching import CLOSING, Mismatch, describe_event, is_close
from mainspring.workflow_code.model import ContinueAsNew, RunState, Turn
from mainspring.workflow_code.queries import QueryAnswer, answer_query, unanswered
from mainspring.workflow_code.workflow_jobs import error_of, read_failure
from mainspring.workflows import history
from mainspring.workflows.carrying import is_carried
from mainspring.workflows.history import STEP_TIMER, MarkerName
from mainspring.workflows.model import DEPTH_LASTS_US, SEMANTICS, Limits, Parked
from mainspring.workflows.requests import CancelTimer, StartTimer, StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.workflow_code.loop import WorkflowTask
    from mainspring.workflow_code.model import Code, StepCall, StepOutcome
    from mainspring.workflows.history import Event
    from mainspring.workflows.requests import Decision

INITIATED: Final = frozenset(history.kinds(history.Initiated))
"""Events that record requests to other runs: their answers name them."""

VALUE_FACTOR: Final = 3
"""Bytes in memory for each byte of an encoded value."""


class Instance(RunState):
    """One run in a worker. It does no I/O and takes the time from its caller."""

    def __init__(self, code: Code, run: int, *, limits: Limits | None = None) -> None:
        super().__init__(code, run, limits or Limits())
        self.started: history.WorkflowExecutionStarted | None = None
        self.depth = 0
        """The depth of what its code does; see `mainspring.workflows.model.depth_of`."""
        self._depth_until_us = 0
        self._loop: WorkflowLoop | None = None
        self._calls: Calls | None = None
        self._main: WorkflowTask | None = None
        self._open: tuple[int, int] | None = None
        """``seen`` and ``now_us`` of the open decision; None: none is open."""
        self._inputs: deque[Event] = deque()
        """Events that the code has not been given."""
        self._commands = CommandLog()
        self._complete_until = 0
        """The last DecisionTaskCompleted that the instance has."""
        self._markers: list[history.MarkerRecorded] = []
        """Step results of a batch that are not resolved yet."""
        self._results: set[int] = set()
        """Steps with results that no event has confirmed."""
        self._attempts: dict[int, tuple[int, int]] = {}
        """The recorded attempts of steps that wait for the next one, and its time."""
        self._each: set[int] = set()
        """Those of them that must be recorded before the next effect."""
        self._close: Decision | None = None
        self._closed = False
        """Whether the history records the close."""
        self._cancel_requested = False
        self._sides: dict[int, history.MarkerRecorded] = {}
        """Recorded side effects that the code has not called yet, by number."""
        self._patches = Patches(self._commands.issue)
        self._carried = CarriedResults()
        self._activation = Activation()
        self._parked: Parked | None = None

    # ---- used by the worker ----

    def deliver(self, events: Sequence[Event], now_us: int) -> Turn:
        """Take the events after ``position``, up to the run's last, and make the next decision.

        Recorded decisions are replayed first. A decision that recorded steps and was lost is resumed. Raises ValueError if
        events are missing.
        """
        if self.depth and now_us >= self._depth_until_us:
            self.depth = 0
        try:
            self._take(events)
            if self._parked is None and not self._closed:
                self._resolve_markers()
                if self._open is None:
                    self._begin_decision(self.position, self._time_of_code(now_us), replaying=False)
        except Mismatch as found:
            self._parked = self._commands.park(found, ())
        finally:
            self._activation.end()
        return self._take_turn(())

    def step_ended(self, results: Sequence[StepOutcome]) -> Turn:
        """Take the results of local steps as one batch, and go on with the decision.

        A decision must be open: while a completion is under way, the worker keeps results back.
        """
        if self._open is None:
            raise RuntimeError("a step's result needs an open decision: call deliver first")
        calls = self._calls
        assert calls is not None
        recorded: list[StepResult] = []
        self.batch += 1
        self.replaying = self.complete = False
        try:
            self._activation.begin(calls.loop)
            for one in results:
                self._end_step(calls, one, recorded)
            if recorded:
                self._run_ready()
            else:
                self.batch -= 1
        finally:
            self._activation.end()
        return self._take_turn(tuple(recorded))

    def _end_step(self, calls: Calls, outcome: StepOutcome, recorded: list[StepResult]) -> None:
        step = calls.steps.take(outcome.number)
        if step is not None:
            recorded.append(calls.steps.end(step, outcome, self.batch))
            self.size += len(recorded[-1].result) * VALUE_FACTOR
            self._results.add(outcome.number)
            if step.call.record == "each":
                self._each.add(outcome.number)

    def recorded(self, events: Sequence[Event]) -> None:
        """Take the events that a completion has recorded. The next ``deliver`` gives newer ones to the code."""
        try:
            self._take(events)
        finally:
            self._activation.end()

    def answer(self, query: str, payload: bytes) -> QueryAnswer:
        """Answer a query from what the code has, without an event. Raises nothing.

        No activation may be under way. After ``recorded`` alone, the answer is that of the last recorded decision.
        """
        calls = self._calls
        if calls is None or self.evicted:
            return unanswered(
                "UnknownQuery", "the code of the run has not begun, so that it answers no queries: ask later"
            )
        self._activation.begin(calls.loop)
        try:
            return answer_query(calls, query, payload)
        finally:
            self._activation.end()

    def about(self) -> bytes:
        """Return what the code waits for, for ``DecideMessage.about``; empty if only for activities and timers."""
        return b"" if self._calls is None else self._calls.about()

    def evict(self) -> None:
        """End the coroutines in place, drop their commands, and free the memory."""
        if self.evicted:
            return
        self.evicted = True
        loop = self._loop
        if loop is not None and loop.tasks:
            loop.silent = True
            self._activation.begin(loop)
            try:
                with guards.unguarded():
                    throw_evicted(loop)
            finally:
                self._activation.end()
        if loop is not None and self._calls is not None:
            release(loop, self._calls)
        self._loop = self._calls = self._main = self._open = None
        self._inputs.clear()

    # ---- turns ----

    def _take_turn(self, steps: tuple[StepResult, ...]) -> Turn:
        if self._parked is not None:
            return Turn(parked=self._parked)
        calls = self._calls
        if calls is None:
            return Turn()
        decisions = self._commands.take_fresh()
        finished = bool(decisions) and is_close(decisions[-1])
        start = (
            ()
            if finished
            else calls.steps.take_started(
                unrecorded=self._commands.unrecorded or bool(self._results), each_unrecorded=bool(self._each)
            )
        )
        if self._attempts and start:
            start = tuple(map(self._go_on_with, start))
        return Turn(
            decisions,
            start,
            steps,
            finished,
            calls.steps.open and not finished,
            None,
            calls.steps.take_stopped(),
        )

    def _go_on_with(self, call: StepCall) -> StepCall:
        """Return a step with its recorded attempts."""
        attempt, due_us = self._attempts.get(call.number, (0, 0))
        return call._replace(attempt=attempt, due_us=due_us) if attempt or due_us else call

    # ---- history ----

    def _take(self, events: Sequence[Event]) -> None:
        """Take new events: replay the decisions that they complete, and keep the rest for the code."""
        if self.evicted:
            raise RuntimeError(f"run {self.run} was evicted")
        first = 0
        while first < len(events) and events[first].id <= self.position:
            first += 1
        if first < len(events) and events[first].id != self.position + 1:
            raise ValueError(f"run {self.run}: event {self.position + 1} is missing; got {events[first].id}")
        called = 0 if self._calls is None else self._calls.side_effects
        for event in events[first:] if first else events:
            kind = type(event)
            if kind is history.DecisionTaskCompleted:
                self._complete_until = event.id
                self._patches.read_completed()
            elif isinstance(event, history.MarkerRecorded) and event.native:
                if event.name == MarkerName.SIDE and event.number > called:
                    self._sides[event.number] = event
                elif event.name == MarkerName.PATCH:
                    self._patches.read_marker(event)
        place = first
        try:
            for place in range(first, len(events)):
                event = events[place]
                self.position = event.id
                self.history.add(event)
                self._take_event(event)
            place = len(events)
            self._commands.end_record()
        except Mismatch as found:
            if self._parked is not None:  # the code has ended by a defect
                found.code = self._parked.message
            self._parked = self._commands.park(found, events[place:])

    def _take_event(self, event: Any) -> None:
        kind = type(event)
        if self._commands.take(event):
            if kind is history.ActivityTaskScheduled and self._calls is not None:
                self._calls.schedule(event.activity_id, event.id)
            elif kind in INITIATED and self._calls is not None:
                self._calls.children.initiated(event)
            elif kind in CLOSING:
                self._closed = True
        if kind in INPUTS:
            self._inputs.append(event)
        elif kind is history.MarkerRecorded:
            if event.native and event.name == MarkerName.STEP:
                self._take_marker(event)
            elif is_carried(event):
                self._carried.add(event)
                self.size += len(event.details)
        elif kind is history.TimerStarted:
            if not event.decision_completed and event.timer_id.startswith(STEP_TIMER):
                self._attempts[event.number] = int(event.control), event.fire_us
        elif kind is history.ActivityTaskStarted:
            if event.attempt != 1 and self._calls is not None:
                self._calls.repeat_activity(event.id, event.attempt)
        elif kind is history.DecisionTaskCompleted:
            self._resolve_markers()
            self._use_decision(event)
            self._commands.begin_record(event.id)
            self._open = None
            self._patches.next_decision()
            self.batch = 0

    def _take_marker(self, event: history.MarkerRecorded) -> None:
        self._attempts.pop(event.number, None)
        if event.number in self._results:
            self._results.remove(event.number)
            self._each.discard(event.number)
            return
        last = self._markers[-1] if self._markers else None
        if last is not None and (last.seen, last.now_us, last.batch) != (event.seen, event.now_us, event.batch):
            self._resolve_markers()
        self._markers.append(event)

    def _resolve_markers(self) -> None:
        """Repeat the activation of a recorded batch."""
        markers, self._markers = self._markers, []
        if not markers:
            return
        self._use_decision(markers[0])
        assert self._calls is not None
        self._activation.begin(self._calls.loop)
        self.replaying = True
        for event in markers:
            self._resolve_marker(self._calls, event)
        self.batch = markers[0].batch
        self.complete = markers[0].id < self._complete_until
        self._run_ready()

    def _resolve_marker(self, calls: Calls, event: history.MarkerRecorded) -> None:
        step = calls.steps.take(event.number)
        if step is None:
            raise Mismatch(describe_event(event), "no such step")
        if event.function != step.call.name or not step.is_recorded_as(
            event.digest, event.details, failed=event.failed
        ):
            raise Mismatch(describe_event(event), f"step #{event.number} {step.call.name} with other arguments")
        self._commands.agree(event)
        self.size += len(event.details) * VALUE_FACTOR
        step.job.end(event.details, event.attempt, failed=event.failed)

    def _use_decision(self, record: history.MarkerRecorded | history.DecisionTaskCompleted) -> None:
        """Begin a recorded decision, unless it is the open one."""
        if self._open != (record.seen, record.now_us):
            self.semantics = record.semantics
            self._begin_decision(record.seen, record.now_us, replaying=True, complete=record.id <= self._complete_until)

    # ---- activations ----

    def _begin_decision(self, seen: int, now_us: int, *, replaying: bool, complete: bool = False) -> None:
        self._open = (seen, now_us)
        self.seen = seen
        self.history.advance(seen)
        self.now_us = max(self.now_us, now_us)
        self.replaying = replaying
        inputs = self._inputs
        if self._loop is None:
            if not inputs or type(inputs[0]) is not history.WorkflowExecutionStarted:
                raise ValueError(f"run {self.run}: its history does not begin with WorkflowExecutionStarted")
            self._begin(inputs.popleft())  # type: ignore[arg-type]
        assert self._loop is not None
        assert self._calls is not None
        assert self.started is not None
        if not replaying:
            self.semantics = min(SEMANTICS, self.started.semantics)
        self._loop.semantics = self.semantics
        self.complete = complete
        self._patches.begin(live=not replaying)
        self._activation.begin(self._loop)
        self._loop.set_time((self.now_us - self.started.at_us) / 1_000_000)
        while inputs and inputs[0].id <= seen:
            self._give(inputs.popleft())
        self._run_ready()

    def _time_of_code(self, now_us: int) -> int:
        """Return the time for a decision that is made now: not before that of the last one, and not before its timers.

        If the node's clock was stepped back, the code's time stands still until the clock has reached it. Timers take their time
        all the same, and the code sees that they have: code that sleeps until some time ends.
        """
        now_us = max(self.now_us, now_us)
        if self._calls is not None and self.started is not None:
            for event in self._inputs:
                if type(event) is history.TimerFired and (timer := self._calls.timers.get(event.timer_id)) is not None:
                    now_us = max(now_us, self.started.at_us + round(timer.when() * 1_000_000))
        return now_us

    def _begin(self, event: history.WorkflowExecutionStarted) -> None:
        """Create the main task."""
        self.started = event
        if event.depth:
            self._follow(event.depth, event.depth_us or event.at_us)
        loop = self._loop = WorkflowLoop(event.seed, self._cancel_timer, self._check_timer)  # type: ignore[abstract] # set by name
        carried = self._carried or None
        calls = self._calls = Calls(self, loop, event, self._commands.issue, self._sides, self._patches, carried)
        loop.workflow_calls = calls
        self.size += len(event.input) * VALUE_FACTOR
        code = self.code

        async def run() -> Any:
            if is_part(event):
                return await run_part(calls, event.input)
            try:
                args, named = code.signature.decode(event.input)
            except PayloadError as error:
                error.received = True
                raise
            try:
                result = await code.call(*args, **named)
            except BaseException as error:
                if calls.handlers is not None and isinstance(error, (asyncio.CancelledError, ContinueAsNew)):
                    if isinstance(error, ContinueAsNew):
                        await calls.handlers.finish(ends_anew=True)
                    calls.handlers.check()
                raise
            if calls.handlers is not None:
                await calls.handlers.finish()
            return result

        self._main = calls.main = loop.context.run(loop.create_task, run(), name=code.name)  # type: ignore[assignment]

    def _follow(self, depth: int, at_us: int) -> None:
        """Note that the code follows from deliveries of events."""
        self.depth, self._depth_until_us = max(depth, self.depth), at_us + DEPTH_LASTS_US

    def _give(self, event: Any) -> None:
        calls = self._calls
        assert calls is not None
        if type(event) is history.WorkflowExecutionSignaled and event.depth:
            self._follow(event.depth, event.at_us)
        if type(event) is history.WorkflowExecutionCancelRequested:
            self._request_cancel(event.reason)
        else:
            self.size += resolve(calls, event) * VALUE_FACTOR

    def _request_cancel(self, reason: str) -> None:
        """Cancel the main task.

        A run is cancelled once: another request would interrupt the cleanup that the first one began. It counts if the code has
        called ``uncancel`` on its main task, which says that it has dealt with the first one and goes on.
        """
        main = self._main
        repeated, self._cancel_requested = self._cancel_requested, True
        if main is not None and not (repeated and self.semantics >= 1 and main.cancelling()):
            main.cancel(reason or None)

    def _run_ready(self) -> None:
        """Run the code until nothing is ready, and collect its commands."""
        loop, calls = self._loop, self._calls  # not the main task: its error refers to this frame
        assert loop is not None
        assert calls is not None
        loop.silent = self.replaying
        calls.begin_activation()
        loop.context.run(loop.run_ready)
        while ((calls.held or calls.handlers) and self._give_held(calls)) or calls.check_conditions():
            loop.context.run(loop.run_ready)
        if calls.difference is not None:
            raise calls.difference
        calls.note_defect(calls.holds.defect)
        if calls.defect is None and self._main is not None and self._main.done():
            self._end_tasks(loop, calls, self._main)
        self._parked = self._parked or calls.defect
        if self._parked is not None:
            return
        if calls.closing.begun and not calls.closing.delayed and not (loop.tasks and self.semantics >= 1):
            self._issue_close(loop, calls)
            return
        for timer in loop.take_new_timers():
            timer.number = calls.next_number()
            calls.timers[str(timer.number)] = timer
            delay = max(round(timer.when() - loop.time(), 6), 0.0)
            self._commands.issue(StartTimer(timer.number, str(timer.number), delay, timer.guards))

    def _give_held(self, calls: Calls) -> bool:
        """Give the code the signals that were held back, unless it ends. Return whether it does not."""
        main = self._main
        return main is not None and not main.done() and (calls.give_held() or calls.handle_held())

    def _end_tasks(self, loop: WorkflowLoop, calls: Calls, main: WorkflowTask) -> None:
        """Cancel the tasks that the main task leaves, unless a defect has ended it."""
        if calls.closing.begun:
            return
        error = None if main.cancelled() else main.exception()
        self._parked = None if error is None else defect_of(error, self)
        del error  # its traceback refers to this frame
        if self._parked is None:
            calls.give_back()
            calls.closing.begin()
            loop.cancel_all()
            loop.context.run(loop.run_ready)

    def _issue_close(self, loop: WorkflowLoop, calls: Calls) -> None:
        """Decide how the run closes."""
        assert self._main is not None
        if self._close is None:
            loop.drop_timers()
            # The result of a part of a map does not have the type of its workflow.
            is_checked = self.semantics >= 2 and not is_part(calls.started)
            encode = self.code.signature.encode_result if is_checked else encode_result
            self._close = close_of(self._main, calls, encode, cancel_requested=self._cancel_requested)
        self._commands.issue_close(self._close, same_close(self._main) if self.replaying else None)

    def _check_timer(self, delay: float) -> None:
        """Raise WorkflowUsageError for a timer that no node would start."""
        if self._loop is not None and self._calls is not None:
            check_timer(delay, self._loop, len(self._calls.timers), self.limits.open_timers)

    def _cancel_timer(self, timer: DurableTimer) -> None:
        assert self._calls is not None
        self._calls.timers.pop(str(timer.number), None)
        if not self.evicted:
            self._commands.issue(CancelTimer(self._calls.next_number(), str(timer.number)))


def resolve(calls: Calls, event: Any) -> int:
    """Give an event to the code. Return the bytes of the value that it brought."""
    return _RESOLVERS[type(event)](calls, event)


def _completed(calls: Calls, event: history.ActivityTaskCompleted) -> int:
    job, _ = calls.close_activity(event.scheduled, event.started)
    if job is None:
        return 0
    job.succeed(event.result)
    return len(event.result)


def _failed(calls: Calls, event: history.ActivityTaskFailed) -> int:
    job, attempt = calls.close_activity(event.scheduled, event.started)
    if job is not None:
        job.fail(error_of(job.handle, event.details, attempt, event.reason))
    return 0


def _timed_out(calls: Calls, event: history.ActivityTaskTimedOut) -> int:
    job, attempt = calls.close_activity(event.scheduled, event.started)
    if job is not None:
        found = read_failure(event.details, "Timeout")
        kind = event.timeout.value.lower()
        message = found.message or f"its {kind.replace('_', '-')} timeout has passed"
        job.fail(JobTimedOut(job.handle, found.type or "Timeout", message, found.traceback, attempt, kind))
    return 0


def _canceled(calls: Calls, event: history.ActivityTaskCanceled) -> int:
    job, _ = calls.close_activity(event.scheduled, event.started)
    if job is not None:
        job.end_cancelled()
    return 0


def _refused(calls: Calls, event: history.ScheduleActivityTaskFailed) -> int:
    job = calls.activities.pop(event.activity_id, None)
    if job is not None:
        job.fail(JobFailed(job.handle, str(event.cause), "the node did not schedule the activity", None, 0))
    return 0


def _fired(calls: Calls, event: history.TimerFired) -> int:
    timer = calls.timers.pop(event.timer_id, None)
    if timer is not None:
        calls.loop.ring(timer)
    return 0


def _refused_timer(calls: Calls, event: history.StartTimerFailed) -> int:
    timer = calls.timers.pop(event.timer_id, None)
    if timer is not None:  # it never fires
        timer.closed = True
    return 0


def _signaled(calls: Calls, event: history.WorkflowExecutionSignaled) -> int:
    if history.is_hold_answer(event):
        return calls.holds.answered(event)
    if calls.handlers is not None and calls.handlers.arrived(event.id, event.name, event.input):
        return len(event.input)
    calls.signals(event.name).put_nowait((event.id, event.input))
    return len(event.input)


def _no_value(take: Callable[[Children, Any], None]) -> Callable[[Calls, Any], int]:
    def resolve(calls: Calls, event: Any) -> int:
        take(calls.children, event)
        return 0

    return resolve


_RESOLVERS: dict[type[Any], Callable[[Calls, Any], int]] = {
    **history.handlers_by_kind(_completed, _failed, _timed_out, _canceled, _refused, _fired, _refused_timer, _signaled),
    history.WorkflowExecutionStarted: lambda _calls, event: len(event.input),
    history.StartChildWorkflowExecutionFailed: _no_value(Children.refused),
    history.ChildWorkflowExecutionCompleted: lambda calls, event: calls.children.completed(event),
    history.ChildWorkflowExecutionFailed: _no_value(Children.failed),
    history.ChildWorkflowExecutionTimedOut: _no_value(Children.timed_out),
    history.ChildWorkflowExecutionCanceled: _no_value(Children.canceled),
    history.ChildWorkflowExecutionTerminated: _no_value(Children.terminated),
    history.ExternalWorkflowExecutionSignaled: _no_value(Children.answered),
    history.ExternalWorkflowExecutionCancelRequested: _no_value(Children.answered),
    history.SignalExternalWorkflowExecutionFailed: _no_value(Children.unanswered),
    history.RequestCancelExternalWorkflowExecutionFailed: _no_value(Children.unanswered),
}

INPUTS: Final = frozenset({history.WorkflowExecutionCancelRequested, *_RESOLVERS})
"""Events that workflow code is given."""
