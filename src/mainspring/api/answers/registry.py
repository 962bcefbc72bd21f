"""The one list of calls: their names, their requests, and what answers them.

Faces are adapters of it. They turn what their clients send into requests, and problems into what their protocol has for them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.api.answers.waiting import Answering
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
        """Offer more calls."""
        self._handlers |= handlers
        self.requests |= {request.call: request for request in handlers if request.call}

    def start(
        self,
        request: Request[A],
        done: Callable[[A], None],
        failed: Callable[[Problem], None],
        broken: Callable[[Exception], None] | None = None,
    ) -> Answering:
        """Begin a call; ``done`` or ``failed`` is called with its outcome, at once where that is known. See `Answering`."""
        return Answering(self._handlers[type(request)](request), done, failed, broken)

    async def call(self, request: Request[A]) -> A:
        """Return the answer to a request. Raises ApiError. Where this is cancelled, the call has ended: nobody waits for it."""
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
