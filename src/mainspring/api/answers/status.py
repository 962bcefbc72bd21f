"""Calls about the node itself: its identity and its load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.api.answers.waiting import Later
from mainspring.api.status import NodeStatus, Show

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.caller import Caller
    from mainspring.api.answers.registry import Handlers
    from mainspring.jobs.service import JobService


class StatusCalls:
    """Calls about the node itself.

    ``status`` returns its current state, with the functions of a namespace that a predicate accepts, or all of them. If its
    third argument is False, no number is of others.
    """

    def __init__(
        self, service: JobService, status: Callable[[str, Callable[[str], bool] | None, bool], NodeStatus]
    ) -> None:
        self._service = service
        self._status = status
        self.handlers: Handlers = {Show: self._show}

    async def _show(self, request: Show, caller: Caller) -> NodeStatus:
        def sees(function: str) -> bool:
            return caller.may(request.permission, request.namespace, function)

        counted: Later[None] = Later(lambda done, _: self._service.counted(lambda: done(None)))
        await counted
        every = caller.functions(request.permission, request.namespace) is None
        return self._status(request.namespace, None if every else sees, caller.may_everywhere(request.permission))
