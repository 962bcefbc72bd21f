"""The local steps that workflow code has called and that have no result yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.deciding.commands import LocalStep, StepSignatures, build_step, check_size
from mainspring.deciding.job import WorkflowJob
from mainspring.errors import PayloadError
from mainspring.jobs.failures import JobFailure
from mainspring.workflows.decisions.model import StepResult

if TYPE_CHECKING:
    from mainspring.deciding.loop import WorkflowLoop
    from mainspring.deciding.model import Record, StepCall, StepOutcome

_encode = msgspec.json.Encoder().encode


class LocalSteps:
    """The local steps of a run. ``largest`` limits the bytes of their inputs and results."""

    __slots__ = ("_fresh", "_largest", "_last", "_loop", "_running", "_signatures", "_steps", "_stopped")

    def __init__(self, loop: WorkflowLoop, largest: int) -> None:
        self._loop = loop
        self._largest = largest
        self._last = 0
        """The number of the last step."""
        self._signatures = StepSignatures()
        self._steps: dict[int, LocalStep] = {}
        """Steps without a result, by number."""
        self._fresh: list[int] = []
        """Steps that the code has called since the last turn."""
        self._running: set[int] = set()
        self._stopped: list[int] = []
        """Running steps that the code has cancelled since the last turn."""

    @property
    def open(self) -> bool:
        """Whether steps run or are to be started."""
        return bool(self._steps)

    def names(self) -> tuple[str, ...]:
        """Return the names of the steps that have no result."""
        return tuple(step.call.name for step in self._steps.values())

    def start(
        self,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None,
        record: Record,
        *,
        keeps: bool,
    ) -> WorkflowJob[Any]:
        """Run a function as a local step. ``keeps``: keep its arguments, to compare them with recorded ones."""
        number = self._last + 1
        call = build_step(number, function, args, kwargs, name, record, self._largest, self._signatures)
        self._last = number
        job: WorkflowJob[Any] = WorkflowJob(
            self._loop, None, call.name, number, call.signature.decode_result, self._cancel
        )
        self._steps[number] = LocalStep(call, job, (args, kwargs) if keeps else None)
        self._fresh.append(number)
        return job

    def _cancel(self, job: WorkflowJob[Any]) -> None:
        self._steps.pop(job.number, None)
        if job.number in self._running:
            self._running.discard(job.number)
            self._stopped.append(job.number)

    def take(self, number: int) -> LocalStep | None:
        """Take a step that has ended; None: its result is not wanted."""
        self._running.discard(number)
        return self._steps.pop(number, None)

    def end(self, step: LocalStep, outcome: StepOutcome, batch: int) -> StepResult:
        """Give a result to the code, and return what is to be recorded."""
        result, is_failure = outcome.result, outcome.failed
        try:
            check_size(
                result, self._largest, f"the result of step {step.job.handle}", "store it elsewhere and return its name"
            )
        except PayloadError as error:
            result, is_failure = _encode(JobFailure("PayloadError", str(error))), True
        step.job.end(result, outcome.attempt, failed=is_failure)
        digest = step.digest(result, failed=is_failure)
        return StepResult(step.call.number, batch, step.call.name, result, digest, is_failure, outcome.attempt)

    def take_started(self, *, unrecorded: bool, each_unrecorded: bool) -> tuple[StepCall, ...]:
        """Return the steps that the code has called since the last turn and that have no result.

        ``unrecorded``: whether commands or results are not recorded yet; ``each_unrecorded``: whether results of steps are that
        must be recorded before the next effect.
        """
        if not self._fresh:
            return ()
        numbers, self._fresh = self._fresh, []
        started: list[StepCall] = []
        for number in numbers:
            step = self._steps.get(number)
            if step is not None:
                call = step.call
                waits = unrecorded if call.record == "each" else each_unrecorded
                started.append(call._replace(at_once=False) if waits else call)
                self._running.add(number)
        return tuple(started)

    def take_stopped(self) -> tuple[int, ...]:
        """Return the running steps that the code has cancelled since the last turn."""
        stopped, self._stopped = self._stopped, []
        return tuple(stopped)

    def close(self) -> list[WorkflowJob[Any]]:
        """Forget all steps, and return their futures."""
        jobs = [step.job for step in self._steps.values()]
        self._steps.clear()
        self._signatures.clear()
        return jobs
