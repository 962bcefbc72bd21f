"""The next time at which something happens in a store in memory, so that a test's clock can skip to it."""

from __future__ import annotations

from heapq import heappop
from typing import TYPE_CHECKING

from mainspring.jobs.model import State
from mainspring.workflows.history import WorkflowExecutionStarted, decode_events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.engines.memory.tables import Tables


def next_due(tables: Tables, *, schedules: bool) -> int | None:
    """Return the first time, in microseconds since 1970; None if nothing will happen by itself.

    The ends of runs by their execution timeouts do not count: a test that waits for anything else is wrong.
    """
    return min(_times(tables, schedules=schedules), default=None)


def _times(tables: Tables, *, schedules: bool) -> Iterator[int]:
    jobs = tables.jobs
    for due_us, job_id in tables.due:
        job = jobs.get(job_id)
        if job is not None and job.state == State.SCHEDULED and job.due_us == due_us:
            yield due_us
    for expires_us, job_id in tables.expiring:
        job = jobs.get(job_id)
        if job is not None and job.state <= State.PENDING and job.expires_us == expires_us:
            yield expires_us
    alarms = tables.alarms
    while alarms and not _is_alarm(tables, *alarms[0]):
        heappop(alarms)
    for due_us, run in alarms:
        if _is_alarm(tables, due_us, run) and due_us != _end_us(tables, run):
            yield due_us
            if due_us == alarms[0][0]:
                break  # it is the first one of the heap
    for stored in tables.schedules.values() if schedules else ():
        if stored.state.next_us is not None:
            yield stored.state.next_us


def _is_alarm(tables: Tables, due_us: int, run: int) -> bool:
    """Return whether an entry of the heap is not outdated."""
    row = tables.workflows.get(run)
    return row is not None and row.due_us == due_us


def _end_us(tables: Tables, run: int) -> int:
    """Return the end of a run's execution timeout."""
    _, blocks = tables.histories[run]
    first = decode_events(blocks[0])[0]
    assert isinstance(first, WorkflowExecutionStarted)
    return (first.timed_from_us or first.at_us) + int(first.execution_timeout * 1_000_000)
