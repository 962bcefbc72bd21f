"""Local steps: functions that a worker runs for a run that it decides, on executors of their own."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.clock import to_us
from mainspring.codecs import NO_CODECS
from mainspring.errors import UsageError
from mainspring.jobs import model as jobs
from mainspring.jobs.model import backoff
from mainspring.worker.current import CurrentJob
from mainspring.worker.delivery import Delivery, Finished, Origin
from mainspring.worker.execution import failure, failure_of
from mainspring.worker.executors.in_process import CoroutineExecutor, ThreadExecutor
from mainspring.worker.executors.process import ProcessExecutor
from mainspring.worker.registry import Function
from mainspring.worker.reports import LogBatches
from mainspring.worker.workflows.recorded_steps import RecordedStep
from mainspring.worker.workflows.runs import RunningStep
from mainspring.workflow_code.model import StepOutcome
from mainspring.workflows.requests import StepRetry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.client.inside import Awaited
    from mainspring.codecs import Codecs
    from mainspring.errors import MainspringError
    from mainspring.worker.current import TokenRequest
    from mainspring.worker.delivery import Executor
    from mainspring.worker.execution import Settlement
    from mainspring.worker.job_log import LogLine
    from mainspring.worker.settings import WorkerSettings
    from mainspring.worker.workflows.runs import Cancellable, NodeClocks, Run
    from mainspring.workflow_code.model import StepCall

    Ended = Callable[[Sequence[tuple[Run, StepOutcome]]], None]
    """Is called on the loop with all steps that have ended in one turn."""

_NO_INFO: Final = b"{}"


class _Detail(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw(b"{}")
    final: bool = False
    delay: float = 0.0


_decode_detail = msgspec.json.Decoder(_Detail).decode


class _StepReports:
    """The reporter of steps: their lines go to the log of the run, and nobody follows their progress."""

    def __init__(self, logs: LogBatches) -> None:
        self._logs = logs

    def progress(self, job: CurrentJob, done: int, total: int, text: str) -> None:
        """Do nothing."""

    def send_data(self, job: CurrentJob, data: bytes, *, warning: bool) -> None:
        """Do nothing."""

    def write_log(self, job: CurrentJob, line: LogLine) -> None:
        """Queue a line for sending, under the lease of the decision that has started the step."""
        if job.origin is not None:
            line.fields = {"step": job.function, **(line.fields or {})}
            self._logs.add(job.origin, line)

    def open_completion(
        self, job: CurrentJob, request: TokenRequest, done: Callable[[MainspringError | None], None]
    ) -> None:
        """Refuse a completion token: a step is no job."""
        del job, request
        done(
            UsageError("a step can have no completion token: await workflow.external_event(task, …), or task.submit(…)")
        )

    def publish(self, job: CurrentJob, name: str, value: bytes) -> None:  # noqa: ARG002 - none is published
        """Refuse it: a value that a step publishes could be ahead of the history."""
        raise UsageError(
            f"{job.function} runs as a local step, which publishes nothing: call workflow.publish({name!r}, …) in the workflow,"
            " or execute it as an activity"
        )

    def write_item(self, job: CurrentJob, name: str, item: bytes) -> int:  # noqa: ARG002 - none is written
        """Refuse it, likewise."""
        raise UsageError(
            f"{job.function} runs as a local step, which writes to no stream: call workflow.stream({name!r}).write(…) in the"
            " workflow, or execute it as an activity"
        )

    def flush_streams(self, job: CurrentJob, done: Callable[[MainspringError | None], None]) -> None:  # noqa: ARG002
        """Do nothing: a step writes to no stream."""
        done(None)

    def waits(self, job: CurrentJob, awaited: Awaited) -> None:
        """Do nothing."""

    def continues(self, job: CurrentJob, awaited: Awaited) -> None:
        """Do nothing."""


class Steps:
    """Runs local steps.

    ``ended`` gets those that have ended. ``waits`` is called with a run after a step of it has begun to wait for its next
    attempt. Processes import the App by its ``selector``; ``task_process`` is the
    command that starts one.

    ``later`` calls a function after so many seconds, for the next attempt; by default the running loop does.
    ``substitute`` returns the function that is called in place of a step's, and ``surround`` one with all that is around
    it. ``ends_orderly`` is that of ``ProcessExecutor``.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        ended: Ended,
        waits: Callable[[Run], None],
        clocks: NodeClocks,
        *,
        selector: str | None,
        task_process: Sequence[str],
        later: Callable[[float, Callable[[], None]], Cancellable] | None = None,
        substitute: Callable[[Function], Function] = lambda function: function,
        surround: Callable[[Function], Function] = lambda function: function,
        ends_orderly: bool = False,
        codecs: Codecs = NO_CODECS,
    ) -> None:
        self._codecs = codecs
        self._surround = surround
        self._ends_orderly = ends_orderly
        self._later = later
        self._substitute = substitute
        self._settings = settings
        self._ended = ended
        self._waits = waits
        self._clocks = clocks
        self._selector = selector
        self._task_process = task_process
        self._executors: dict[str, Executor] = {}
        self._coroutines: CoroutineExecutor
        self._processes: ProcessExecutor
        self._functions: dict[tuple[str, Callable[..., Any]], Function] = {}
        self._steps: dict[Delivery, RunningStep] = {}
        self._logs = LogBatches()
        self._reports = _StepReports(self._logs)

    def attach(self) -> None:
        """Create the executors on the running loop."""
        places = self._settings.concurrency
        self._loop = asyncio.get_running_loop()
        self._logs.attach()
        self._coroutines = CoroutineExecutor(self._finished)
        self._processes = ProcessExecutor(
            places,
            self._selector,
            self._finished,
            most=places,
            max_rss=self._settings.max_rss,
            command=self._task_process,
            ends_orderly=self._ends_orderly,
        )
        self._executors = {
            "thread": ThreadExecutor(places, self._finished, most=places),
            "coroutine": self._coroutines,
            "process": self._processes,
        }

    async def close(self) -> None:
        """End threads and processes."""
        for executor in self._executors.values():
            await executor.close()

    def start(self, run: Run, calls: Sequence[StepCall]) -> None:
        """Start steps of a run. Coroutines that end without a wait have their outcomes in ``run.outcomes`` afterwards."""
        deliveries: dict[str, list[Delivery]] = {}
        for call in calls:
            step = run.running[call.number] = RunningStep(run, call)
            if call.due_us:
                wait_us = max(call.due_us - self._clocks.now_us(run.link), 0)
                step.due_us = max(self._clocks.monotonic_us() + wait_us, 1)
                self._plan(step)
            elif call.executor == "coroutine":
                outcome = self._begin(step)
                if outcome is not None:
                    run.outcomes.append(outcome)
            else:
                deliveries.setdefault(call.executor, []).append(self._attempt(step))
        for executor, batch in deliveries.items():
            self._executors[executor].start(batch, brief=True)

    def resume(self, run: Run) -> None:
        """Go on with the steps of a run that wait for their next attempts, after `rest`."""
        for step in run.running.values():
            if step.due_us and step.timer is None:
                self._plan(step)

    def rest(self, run: Run) -> tuple[StepRetry, ...]:
        """Begin no attempts until `resume`. Return the steps whose next attempts the history has not."""
        found = []
        for step in run.running.values():
            if step.timer is not None:
                step.timer.cancel()
                step.timer = None
                step.begins = False
            if not step.recorded:
                step.recorded = True
                wait_us = max(step.due_us - self._clocks.monotonic_us(), 0)
                found.append(StepRetry(step.call.number, step.attempt, wait_us))
        return tuple(found)

    def _begin(self, step: RunningStep) -> StepOutcome | None:
        """Run the next attempt of a coroutine up to its first wait; return its outcome if it has ended."""
        delivery = self._delivery(step)
        timeout = step.call.timeout
        begun = self._loop.time()
        settlement = self._coroutines.run(delivery, begun)
        if settlement is None:
            self._watch(step, delivery)
            return None
        step.delivery = None
        if timeout is not None and self._loop.time() - begun > timeout:
            settlement = _timeout(step)
        return self._outcome(step, settlement)

    def _attempt(self, step: RunningStep) -> Delivery:
        """Return the next attempt of a step, which an executor is going to end."""
        delivery = self._delivery(step)
        self._watch(step, delivery)
        return delivery

    def _delivery(self, step: RunningStep) -> Delivery:
        """Return the next attempt of a step."""
        call = step.call
        step.attempt += 1
        step.due_us = 0
        step.recorded = False
        if call.transaction is not None:
            if step.transaction is None:
                largest = step.run.instance.limits.largest
                step.transaction = RecordedStep(
                    call, step.run.id, step.run.step_key, largest, self._surround, self._codecs
                )
            function = self._substitute(step.transaction.function)
        else:
            function = self._function(call)
        info = _NO_INFO if step.attempt == 1 else b'{"attempt":%d}' % step.attempt
        if call.retry is not None:
            info = b'{"attempt":%d,"max_attempts":%d}' % (step.attempt, call.retry.max_attempts)
        if depth := step.run.instance.depth:
            info = b'%b,"depth":%d}' % ((b'{"attempt":1}' if info is _NO_INFO else info)[:-1], depth)
        key = (b"%d#%d" % (step.run.id, call.number), b"")
        origin = Origin(step.run.link, step.run.key) if step.run.key else None
        job = CurrentJob(key[0], b"", call.name, info, self._reports, origin)
        delivery = step.delivery = Delivery(step.run.link, key, function, call.payload, job, 0.0)
        delivery.running = True
        return delivery

    def _function(self, call: StepCall) -> Function:
        """Return the function of a step that runs in no transaction of a user."""
        function = self._functions.get((call.name, call.call)) if call.lasts else None
        if function is None or function.retry != call.retry:
            function = self._surround(
                self._substitute(
                    Function(
                        call.name, call.call, call.signature, call.executor, call.retry, middleware=call.middleware
                    )
                )
            )
            if call.lasts:  # another one may be a closure with any values: nothing keeps it after its run
                self._functions[call.name, call.call] = function
        return function

    def _watch(self, step: RunningStep, delivery: Delivery) -> None:
        """Await the end of an attempt, or its time-out."""
        self._steps[delivery] = step
        if step.call.timeout is not None:
            step.timer = self._loop.call_later(step.call.timeout, self._timed_out, step)

    def stop(self, run: Run, numbers: Sequence[int] | None = None) -> None:
        """Stop steps of a run whose outcomes nobody waits for; None: all of them."""
        for number in list(run.running) if numbers is None else numbers:
            step = run.running.pop(number, None)
            if step is not None:
                self._stop(step, "cancelled")

    def _stop(self, step: RunningStep, reason: str) -> None:
        step.over = True
        if step.timer is not None:
            step.timer.cancel()
        if step.transaction is not None:
            step.transaction.stop()
        if step.delivery is not None:
            step.delivery.job.ask_to_stop(reason)
            self._executors[step.delivery.executor].stop(step.delivery, at_once=reason == "timeout")

    def _timed_out(self, step: RunningStep) -> None:
        """End an attempt that takes too long. A thread goes on, and its outcome is ignored."""
        assert step.delivery is not None
        assert step.call.timeout is not None
        if step.delivery.executor == "process":  # the wait for a process, and its start, are no running time
            left = self._processes.begun(step.delivery) + step.call.timeout - self._loop.time()
            if left > 0:
                left = min(left, step.call.timeout)  # it may begin at any time from now on
                step.timer = self._loop.call_later(left, self._timed_out, step)
                return
        delivery, step.delivery = step.delivery, None
        del self._steps[delivery]
        delivery.job.ask_to_stop("timeout")
        self._executors[delivery.executor].stop(delivery, at_once=True)
        outcome = self._outcome(step, _timeout(step))
        if outcome is not None:
            self._ended([(step.run, outcome)])

    def _finished(self, finished: Sequence[Finished]) -> None:
        ended = []
        for delivery, settlement, _ in finished:
            step = self._steps.pop(delivery, None)
            if step is None or step.over:
                continue
            step.delivery = None
            if step.timer is not None:
                step.timer.cancel()
                step.timer = None
            try:
                outcome = self._outcome(step, settlement)
            except Exception as error:  # noqa: BLE001 - the steps beside it have ended, too
                outcome = self._outcome(step, failure_of(error, final=True))
            if outcome is not None:
                ended.append((step.run, outcome))
        if ended:
            self._ended(ended)

    def _outcome(self, step: RunningStep, settlement: Settlement) -> StepOutcome | None:
        """Return the outcome of a step whose attempt has ended; None if there is another attempt."""
        self._logs.send()  # before the report that may end the lease
        number = step.call.number
        transaction = step.transaction
        if transaction is not None and transaction.refusal:
            return StepOutcome(number, b"", failed=True, attempt=step.attempt, refusal=transaction.refusal)
        if transaction is not None and transaction.failure:
            return StepOutcome(number, transaction.failure, failed=True, attempt=step.attempt)
        if settlement.outcome == b"succeeded":
            return StepOutcome(number, settlement.data, attempt=step.attempt)
        detail = _decode_detail(settlement.detail) if settlement.detail else _Detail()
        if settlement.outcome == b"snoozed":
            step.attempt -= 1
            self._retry_later(step, detail.delay)
            return None
        if settlement.outcome != b"failed":
            detail.error = msgspec.Raw(b'{"type":"Cancelled","message":"the step was stopped"}')
            return StepOutcome(number, bytes(detail.error), failed=True, attempt=step.attempt)
        retry = step.call.retry
        if retry is not None and not detail.final and step.attempt < retry.max_attempts:
            policy = msgspec.convert(retry.wire(), jobs.Retry)
            self._retry_later(step, backoff(policy, step.attempt, random.random()))  # noqa: S311 - no secret
            return None
        return StepOutcome(number, bytes(detail.error), failed=True, attempt=step.attempt)

    def _retry_later(self, step: RunningStep, delay: float) -> None:
        step.due_us = self._clocks.monotonic_us() + max(to_us(delay), 1)
        self._plan(step)
        self._loop.call_soon(self._waits, step.run)

    def _plan(self, step: RunningStep) -> None:
        """Begin the next attempt of a step at its time."""

        def begin() -> None:
            step.timer = None
            step.begins = False
            if step.call.executor != "coroutine":
                self._executors[step.call.executor].start([self._attempt(step)], brief=True)
                return
            outcome = self._begin(step)
            if outcome is not None:
                self._ended([(step.run, outcome)])

        delay = max(step.due_us - self._clocks.monotonic_us(), 0) / 1_000_000
        step.begins = not delay
        step.timer = (self._later or self._loop.call_later)(delay, begin) if delay else self._loop.call_soon(begin)


def _timeout(step: RunningStep) -> Settlement:
    """Return the end of an attempt that took too long."""
    seconds = step.call.timeout
    return failure("Timeout", f"the attempt of step {step.call.name} ran for longer than {seconds:g} s")
