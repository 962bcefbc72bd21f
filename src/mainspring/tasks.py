"""The tasks that are defined on an App, as its code holds them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from mainspring.client.submission import Check, Key, S_co, Submission, Unique, check_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.client.connections import Connections
    from mainspring.client.options import Options
    from mainspring.worker.registry import Function

P = ParamSpec("P")
R = TypeVar("R")


class Task(Submission[P, R, S_co]):
    """A function that workers run: called, it runs here and now; submitted, it becomes a job."""

    def __init__(
        self,
        call: Callable[P, R],
        function: Function,
        connections: Connections,
        options: Options,
        unique: Unique = "",
        key: Key = "",
        check: Check = check_nothing,
    ) -> None:
        super().__init__(function.name, function.signature, connections, options, unique, key=key, check=check)
        self.function = function
        self.defaults = options
        self._call = call
        functools.update_wrapper(self, call)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here, without any server."""
        return self._call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Task({self.name!r})"


class CoroutineTask(Submission[P, R, S_co]):
    """A coroutine function that workers run: awaited, it runs here; submitted, it becomes a job."""

    def __init__(
        self,
        call: Callable[P, Coroutine[Any, Any, R]],
        function: Function,
        connections: Connections,
        options: Options,
        unique: Unique = "",
        key: Key = "",
        check: Check = check_nothing,
    ) -> None:
        super().__init__(function.name, function.signature, connections, options, unique, key=key, check=check)
        self.function = function
        self.defaults = options
        self._call = call
        functools.update_wrapper(self, call)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run the function here, without any server."""
        return self._call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"CoroutineTask({self.name!r})"


class Define(Generic[S_co]):
    """The decorator ``@app.task(…)``: keeps the kind of the function apart, for type checkers."""

    def __init__(self, define: Callable[[Callable[..., Any]], Any]) -> None:
        self._define = define

    @overload
    def __call__(  # type: ignore[overload-overlap] # the first that fits is meant
        self, call: Callable[P, Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R, S_co]: ...
    @overload
    def __call__(self, call: Callable[P, R], /) -> Task[P, R, S_co]: ...
    def __call__(self, call: Callable[..., Any], /) -> Any:
        """Define a task of a function.  Raises UsageError where it cannot be one."""
        return self._define(call)
