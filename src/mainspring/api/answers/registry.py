"""The only list of calls: their names, requests and handlers.

Faces are adapters of it. They convert their clients' messages to requests, and problems to the errors of their protocol.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.api.answers.waiting import CallInProgress
from mainspring.api.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from mainspring.api.answers.waiting import Ask
    from mainspring.api.errors import Problem
    from mainspring.api.request import Request

    Handlers = Mapping[type[Request[Any]], Callable[[Any], Coroutine[Ask, Any, Any]]]
    """Coroutines by kind of request. They raise MainspringErrors, which `problem_of` turns into problems."""

A = TypeVar("A")


class Api:
    """The calls of a node, for all faces."""

    def __init__(self, *parts: Handlers) -> None:
        self.requests: dict[str, type[Request[Any]]] = {}
        """Names of calls to their requests."""
        self._handlers: dict[type[Request[Any]], Callable[[Any], Coroutine[Ask, Any, Any]]] = {}
        for part in parts:
            self.add(part)

    def add(self, handlers: Handlers) -> None:
        """Add calls."""
        self._handlers |= handlers
        self.requests |= {request.call: request for request in handlers if request.call}

    def start(
        self,
        request: Request[A],
        done: Callable[[A], None],
        failed: Callable[[Problem], None],
        broken: Callable[[Exception], None] | None = None,
    ) -> CallInProgress:
        """Begin a call. ``done`` or ``failed`` is called with its outcome, at once if possible. See `CallInProgress`."""
        return CallInProgress(self._handlers[type(request)](request), done, failed, broken)

    async def call(self, request: Request[A]) -> A:
        """Return the answer to a request. Raises ApiError. Cancelling this coroutine ends the call."""
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()

        def done(value: A) -> None:
            if not answer.done():
                answer.set_result(value)

        def broken(error: Exception) -> None:
            if not answer.done():
                answer.set_exception(error)

        def failed(problem: Problem) -> None:
            broken(ApiError(problem.code, problem.message))

        under_way = self.start(request, done, failed, broken)
        try:
            return await answer
        finally:
            under_way.end()
