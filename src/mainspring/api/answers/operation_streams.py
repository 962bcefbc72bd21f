"""The stream of one operation on many jobs: its progress until it ends, whichever node works on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.api.answers.operations import operation_info
from mainspring.api.errors import ApiError, Code
from mainspring.api.operations import Follow
from mainspring.bulk.model import Status
from mainspring.bulk.store import ShowBulk

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.caller import Caller
    from mainspring.api.answers.operations import OperationCalls
    from mainspring.api.answers.registry import Followers
    from mainspring.api.feeds import Feed
    from mainspring.bulk.model import BulkOperation
    from mainspring.errors import StoreError
    from mainspring.jobs.service import JobService

INTERVAL: Final = 0.5
"""Seconds between two reads of an operation: another node may work on it."""


class OperationStreams:
    """Streams about single operations. ``calls`` is None if the store keeps none."""

    def __init__(self, calls: OperationCalls | None, service: JobService) -> None:
        self._calls = calls
        self._service = service
        self.followers: Followers = {Follow: self._follow}

    async def _follow(self, request: Follow, caller: Caller, feed: Feed) -> Callable[[], None]:
        """Send the operation now, and after each of its steps."""
        if self._calls is None:
            raise ApiError(Code.UNSUPPORTED, "a store on ZooKeeper keeps no operations on many jobs")
        bulk = await self._calls.find(request.namespace, request.id, caller)
        watcher = _Watcher(self._service, bulk, feed)
        watcher.send(bulk)
        return watcher.end


class _Watcher:
    """Reads an operation from time to time, until it or its client has ended."""

    def __init__(self, service: JobService, bulk: BulkOperation, feed: Feed) -> None:
        self._service = service
        self._bulk = bulk
        self._feed = feed
        self._is_ended = False

    def send(self, bulk: BulkOperation) -> None:
        """Send the operation; after the last step, end the stream."""
        self._bulk = bulk
        self._feed.replace("operation", operation_info(bulk))
        self._go_on()

    def end(self) -> None:
        """Send no more: the client has left."""
        self._is_ended = True

    def _go_on(self) -> None:
        if self._bulk.status is Status.RUNNING:
            self._service.later(INTERVAL, self._look)
        else:
            self._feed.end()

    def _look(self) -> None:
        if not self._is_ended:
            query = ShowBulk(self._bulk.namespace, self._bulk.id)
            self._service.ask(query, self._found, self._not_found, lambda: not self._is_ended)

    def _found(self, bulk: BulkOperation | None) -> None:
        if self._is_ended:
            return
        if bulk is None:
            self._feed.end()
        elif bulk.revision != self._bulk.revision:
            self.send(bulk)
        else:
            self._go_on()

    def _not_found(self, error: StoreError) -> None:
        del error  # the next read may succeed
        if not self._is_ended:
            self._go_on()
