"""Lookups and counts of jobs in memory, and their subscribers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.engines.memory.jobs import PENDING, copy, find_job
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, Priority, State
from mainspring.namespaces import namespace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.engines.memory.tables import Tables
    from mainspring.storage.operation import Operation

_UNFINISHED = [(int(state), int(priority)) for state in State if not state.ended for priority in Priority]


def find(tables: Tables, operation: ops.Find | ops.Subscribe) -> dict[int, Job]:
    """Return jobs by their ids; see ``Find``."""
    looked_up = {job_id: find_job(tables, job_id, operation.namespace) for job_id in operation.ids}
    found = {job_id: copy(job) for job_id, job in looked_up.items() if job is not None}
    ops.leave_unread(found, operation.room)
    return found


def wait(tables: Tables, operation: ops.Subscribe) -> dict[int, Job]:
    """Record waiters, and return the jobs; see ``Subscribe``."""
    found = find(tables, operation)
    for job in found.values():
        if not State(job.state).ended:
            tables.waits.setdefault(job.id, set()).add(operation.term)
    return found


def find_subscribers(tables: Tables, operation: ops.FindSubscribers) -> dict[int, list[int]]:
    """Return the nodes of other waiters; see ``FindSubscribers``."""
    return {
        job_id: sorted(terms - {operation.term})
        for job_id in operation.ids
        if (terms := tables.waits.get(job_id, set())) - {operation.term}
    }


def find_unique(tables: Tables, operation: ops.FindUnique) -> list[ops.Found | None]:
    """Return live jobs by their uniques; see ``FindUnique``."""
    found: list[ops.Found | None] = []
    for function, unique in operation.keys:
        names = _functions_of(tables, function.namespace) if isinstance(function, ops.InNamespace) else (function,)
        ids = (tables.live.get((name, unique)) for name in names)
        job_id = next((at for at in ids if at is not None), None)
        found.append(None if job_id is None else ops.Found.of(tables.jobs[job_id]))
    return found


def _functions_of(tables: Tables, namespace: str) -> set[bytes]:
    return {function for function, *_ in tables.counts if namespace_of(function) == namespace}


def count(tables: Tables, operation: ops.Count) -> dict[tuple[bytes, int, int], int]:
    """Return the counts; see ``Count``."""
    del operation
    return {key: number for key, number in tables.counts.items() if number}


def count_live(tables: Tables, operation: ops.CountLive) -> ops.Counted:
    """Return the counts of some functions; see ``CountLive``."""
    return ops.Counted(live_of(tables, operation.functions))


def live_of(tables: Tables, functions: Iterable[bytes]) -> dict[tuple[bytes, int, int], int]:
    """Return the numbers of unfinished jobs of some functions."""
    keys = ((function, *of) for function in functions for of in _UNFINISHED)
    return {key: number for key in keys if (number := tables.counts.get(key, 0))}


def read_backlog(tables: Tables, operation: ops.ReadBacklog) -> ops.Backlog:
    """Return the backlog; see ``ReadBacklog``."""
    pending: dict[tuple[bytes, int], int] = {}
    live: dict[bytes, int] = {}
    functions = tables.counts.functions if operation.functions is None else operation.functions
    for (function, state, priority), number in live_of(tables, functions).items():
        if state == PENDING:
            pending[function, priority] = number
        live[function] = live.get(function, 0) + number
    nexts = [heap[0][0] for heap in (tables.due, tables.expiring) if heap]
    return ops.Backlog(pending, live, min(nexts, default=0))


HANDLERS: dict[type[Operation], Callable[[Tables, Any], object]] = {
    ops.Subscribe: wait,
    ops.Find: find,
    ops.FindUnique: find_unique,
    ops.FindSubscribers: find_subscribers,
    ops.ReadBacklog: read_backlog,
    ops.Count: count,
    ops.CountLive: count_live,
}
