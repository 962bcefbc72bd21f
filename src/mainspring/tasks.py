"""Tasks of an App as Python objects, and the decorators that define them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, overload

from mainspring.client.declarations import build_schedule
from mainspring.client.inside import workflow_calls
from mainspring.client.submission import Check, Key, Submission, Unique, accept_options
from mainspring.errors import UsageError, WorkflowUsageError
from mainspring.resources.rules import UNLIMITED
from mainspring.worker.functions import build_function, build_workflow
from mainspring.worker.registry import KEPT
from mainspring.workflow_definitions import Workflow

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.client.connections import Connections
    from mainspring.client.declarations import Arguments, Declarations, Timing
    from mainspring.client.job import Job
    from mainspring.client.options import Options, Retry
    from mainspring.resources.rules import Limits
    from mainspring.worker.registry import Function, Kept, Registry

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


class Defined(Submission[P, R], Generic[P, R, C]):
    """A function that workers run, with the default options of its jobs. ``C`` is the return type of a call."""

    def __init__(
        self,
        call: Callable[P, C],
        function: Function,
        connections: Connections,
        options: Options,
        unique: Unique = "",
        key: Key = "",
        check: Check = accept_options,
    ) -> None:
        super().__init__(function.name, function.signature, connections, options, unique, key=key, check=check)
        self.function = function
        self.defaults = options
        self._call = call
        functools.update_wrapper(self, call)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Run the function in this process, without a server."""
        if workflow_calls() is not None:
            return self._call_in_workflow(*args, **kwargs)
        return self._call(*args, **kwargs)

    def step(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Run the function as a local step of a workflow: on its worker, with a recorded result.

        Raises WorkflowUsageError outside of a workflow.
        """
        calls = workflow_calls()
        if calls is None:
            raise WorkflowUsageError(
                f"{self.name}.step(…) works only inside of a workflow: write {self.name}.submit(…), or call {self.name}(…)"
            )
        job: Job[R] = calls.step(self, args, kwargs)
        return job

    def _call_in_workflow(self, *_args: P.args, **_kwargs: P.kwargs) -> C:
        raise WorkflowUsageError(
            f"{self.name} is called inside of a workflow, which would run it again in each replay: write `await "
            f"{self.name}.step(…)` to run it on this worker, or `await {self.name}.submit(…)` for an activity"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class Task(Defined[P, R, R]):
    """A function that workers run. A call runs it in this process; ``submit`` creates a job."""


class CoroutineTask(Defined[P, R, "Coroutine[Any, Any, R]"]):
    """A coroutine function that workers run. An awaited call runs it in this process; ``submit`` creates a job.

    Inside of a workflow, an awaited call is an activity, as with ``submit``.
    """

    def _call_in_workflow(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.submit(*args, **kwargs)


class Define:
    """The decorator ``@app.task(…)``, typed for functions and for coroutine functions."""

    def __init__(self, define: Callable[[Callable[..., Any]], Any]) -> None:
        self._define = define

    @overload
    def __call__(  # type: ignore[overload-overlap] # type checkers use the first overload that fits
        self, call: Callable[P, Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, call: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, call: Any, /) -> Any:
        """Define a task from a function. Raises UsageError if the function cannot be a task."""
        return self._define(call)


class Schedule(Define):
    """The decorator ``@app.scheduled(…)``, which also schedules a workflow."""

    @overload  # type: ignore[override] # a workflow can be called inside of another one, and is no function
    def __call__(self, call: Workflow[P, R], /) -> Workflow[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, call: Callable[P, Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, call: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, call: Any, /) -> Any:
        """Define a schedule for a function or a workflow. Raises UsageError if the function cannot be a task."""
        return self._define(call)


class Definitions:
    """Creates the tasks, workflows and schedules of one App, and adds them to its registry and declarations for workers."""

    def __init__(self, registry: Registry, schedules: Declarations, connections: Connections, check: Check) -> None:
        self._registry = registry
        self._schedules = schedules
        self._connections = connections
        self._check = check

    def task(
        self,
        call: Any,
        name: str | None,
        executor: Literal["thread", "process"],
        options: Options,
        unique: Unique,
        limits: Limits = UNLIMITED,
        key: Key = "",
        kept: Kept = KEPT,
    ) -> Any:
        """Define a task. Raises UsageError if the function cannot be a task, or the name is taken."""
        if isinstance(call, Workflow):
            raise UsageError(
                f"{call.name} is a workflow, and not a function for a task: schedule it with @app.scheduled(…)"
            )
        given = call.function.call if isinstance(call, Defined) else call
        function = build_function(given, name, executor, options, limits, kept=kept)
        self._registry.add(function)
        kind: Any = CoroutineTask if function.executor == "coroutine" else Task
        return kind(function.call, function, self._connections, options, unique, key, self._check)

    def workflow(
        self,
        call: Any,
        name: str | None,
        version: str,
        timeout: float | None,
        park_on: tuple[type[BaseException], ...],
        options: Options,
        unique: Unique,
        retry: Retry | None,
    ) -> Workflow[..., Any]:
        """Define a workflow. Raises UsageError if the function cannot be one, or the name is taken."""
        function = build_workflow(call, name, version, timeout, park_on, retry)
        self._registry.add_workflow(function)
        return Workflow(function, self._connections, options, unique, self._check, self._registry.add_workflow)

    def scheduled(
        self,
        call: Any,
        name: str | None,
        executor: Literal["thread", "process"],
        options: Options,
        unique: Unique | None,
        timing: Timing,
        args: Arguments,
    ) -> Any:
        """Define a schedule for a task or a workflow, or for a function, which becomes a task.

        Raises as ``task``, and TypeError and PayloadError if the arguments do not fit.
        """
        task = call
        if not isinstance(call, (Defined, Workflow)):
            task = self.task(call, name, executor, options, unique or "")
        chosen = task.defaults.merged(options)
        positional, named = ((), dict(args)) if isinstance(args, Mapping) else (tuple(args), {})
        payload = task.function.signature.encode(positional, named)
        submission = task if unique is None else task.options(unique=unique)
        job_unique = submission.unique_of(positional, named)
        schedule = build_schedule(name or task.name, task.name, timing, chosen, job_unique, payload)
        self._schedules.check_parents(timing.parent)
        self._schedules.declare(schedule)
        return task
