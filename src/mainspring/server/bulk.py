"""Builds a node's part in operations on many jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.api.answers.backfills import BackfillCalls
from mainspring.api.answers.operation_streams import OperationStreams
from mainspring.api.answers.operations import OperationCalls, without_operations
from mainspring.bulk.run import Node
from mainspring.bulk.service import BulkService
from mainspring.bulk.unit import KIND

if TYPE_CHECKING:
    from mainspring.access.service import AccessService
    from mainspring.api.answers.jobs import JobCalls
    from mainspring.api.answers.registry import Followers, Handlers
    from mainspring.clock import Clock
    from mainspring.jobs.service import JobService
    from mainspring.schedules.service import ScheduleService
    from mainspring.server.fleet import Fleet
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.engine import Engine
    from mainspring.storage.reads import Reads
    from mainspring.storage.set_aside import SetAside


def build_bulk(
    engine: Engine,
    service: JobService,
    commits: CommitQueue,
    reads: Reads,
    clock: Clock,
    access: AccessService,
    fleet: Fleet | None,
    *,
    retention: float,
    set_aside: SetAside,
) -> BulkService | None:
    """Return the node's part; None if the store keeps no operations. ``retention`` is in seconds."""
    if not keeps_operations(engine):
        return None
    node = Node(commits, reads, clock, service.stored_changes, service.later, service.cancel, access.current)

    def has_no_lease() -> bool:
        return fleet is not None and not fleet.lease_manager.lease_valid()

    return BulkService(
        node,
        lambda: service.next_id(),  # noqa: PLW0108 - the next term has another function
        lambda: service.term,
        has_no_lease,
        retention=retention,
        set_aside=set_aside,
    )


def keeps_operations(engine: Engine) -> bool:
    """Return whether a store keeps operations on many jobs."""
    return any(one.kind == KIND for one in getattr(engine, "slices", ()))


def backfill_handlers(bulk: BulkService | None, schedules: ScheduleService, reads: Reads) -> Handlers:
    """Return the answers to requests for backfills."""
    return BackfillCalls(bulk, schedules, reads).handlers


def operation_calls(bulk: BulkService | None, service: JobService, job_calls: JobCalls) -> OperationCalls | None:
    """Return the calls about operations; None if the store keeps none."""
    return None if bulk is None else OperationCalls(bulk, service, job_calls.find_run)


def operation_handlers(calls: OperationCalls | None) -> Handlers:
    """Return the answers to calls about operations."""
    return without_operations() if calls is None else calls.handlers


def operation_streams(calls: OperationCalls | None, service: JobService) -> Followers:
    """Return the streams about operations."""
    return OperationStreams(calls, service).followers
