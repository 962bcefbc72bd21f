"""Calls about the node itself: its identity and its load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.api.answers.waiting import Later
from mainspring.api.status import NodeStatus, Show

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.api.answers.registry import Handlers
    from mainspring.jobs.service import JobService


class StatusCalls:
    """Calls about the node itself; ``status`` returns its current state."""

    def __init__(self, service: JobService, status: Callable[[], NodeStatus]) -> None:
        self._service = service
        self._status = status
        self.handlers: Handlers = {Show: self._show}

    async def _show(self, _: Show) -> NodeStatus:
        counted: Later[None] = Later(lambda done, _: self._service.counted(lambda: done(None)))
        await counted
        return self._status()
