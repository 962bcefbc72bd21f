"""The tasks that are defined on an App, as its code holds them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, overload

from mainspring.client.scheduling import build_schedule
from mainspring.client.submission import Check, Key, Submission, Unique, accept_options
from mainspring.resources.model import UNLIMITED
from mainspring.worker.functions import build_function

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.client.connections import Connections
    from mainspring.client.options import Options
    from mainspring.client.scheduling import Arguments, Declarations, Timing
    from mainspring.resources.model import Limits
    from mainspring.worker.registry import Function, Registry

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


class Defined(Submission[P, R], Generic[P, R, C]):
    """A function that workers run, with the options that its jobs have by default. ``C`` is what a call of it returns."""

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
        """Run the function here, without any server."""
        return self._call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class Task(Defined[P, R, R]):
    """A function that workers run: called, it runs here and now; submitted, it becomes a job."""


class CoroutineTask(Defined[P, R, "Coroutine[Any, Any, R]"]):
    """A coroutine function that workers run: awaited, it runs here; submitted, it becomes a job."""


class Define:
    """The decorator ``@app.task(…)``: keeps the kind of the function apart, for type checkers."""

    def __init__(self, define: Callable[[Callable[..., Any]], Any]) -> None:
        self._define = define

    @overload
    def __call__(  # type: ignore[overload-overlap] # the first that fits is meant
        self, call: Callable[P, Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, call: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, call: Callable[..., Any], /) -> Any:
        """Define a task of a function.  Raises UsageError where it cannot be one."""
        return self._define(call)


class Definitions:
    """Makes the tasks and schedules of one App, and keeps them where workers look."""

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
    ) -> Any:
        """Define a task.  Raises UsageError where the function cannot be one, or the name is taken."""
        given = call.function.call if isinstance(call, Defined) else call
        function = build_function(given, name, executor, options, limits)
        self._registry.add(function)
        kind: Any = CoroutineTask if function.executor == "coroutine" else Task
        return kind(function.call, function, self._connections, options, unique, key, self._check)

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
        """Define the schedule of a task, and the task where it is a mere function.

        Raises as ``task``, and TypeError and PayloadError where the arguments do not fit.
        """
        task = call
        if not isinstance(call, Defined):
            task = self.task(call, name, executor, options, unique or "")
        chosen = task.defaults.merged(options)
        positional, named = ((), dict(args)) if isinstance(args, Mapping) else (tuple(args), {})
        payload = task.function.signature.encode(positional, named)
        submission = task if unique is None else task.options(unique=unique)
        said = submission.unique_of(positional, named)
        schedule = build_schedule(name or task.name, task.name, timing, chosen, said, payload)
        self._schedules.check_parents(timing.parent)
        self._schedules.add(schedule)
        return task
