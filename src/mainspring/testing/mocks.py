"""Stand-ins for the code of tasks, in tests."""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.worker.registry import Function


class Mocks:
    """The outcomes of mocked functions, by name. Functions call their own code until they are mocked."""

    def __init__(self) -> None:
        self._outcomes: dict[str, Any] = {}

    def set(self, name: str, outcome: Any) -> None:
        """Give a function an outcome from its next call on: a result, an exception to raise, or a function to call instead."""
        self._outcomes[name] = outcome

    def substitute(self, function: Function) -> Function:
        """Return a function that calls the given one, unless it is mocked."""
        name, call = function.name, function.call
        is_coroutine = inspect.iscoroutinefunction(call)
        if is_coroutine:

            @functools.wraps(call)
            async def substitute(*args: Any, **named: Any) -> Any:
                found = self._call(name, call, args, named)
                return await found if inspect.isawaitable(found) else found
        else:

            @functools.wraps(call)
            def substitute(*args: Any, **named: Any) -> Any:
                return self._call(name, call, args, named)

        return replace(function, call=substitute)

    def _call(self, name: str, call: Any, args: Any, named: Any) -> Any:
        if name not in self._outcomes:
            return call(*args, **named)
        outcome = self._outcomes[name]
        if isinstance(outcome, BaseException) or (isinstance(outcome, type) and issubclass(outcome, BaseException)):
            raise outcome
        return outcome(*args, **named) if callable(outcome) else outcome
