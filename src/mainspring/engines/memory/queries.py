"""The read side in memory."""

from __future__ import annotations

import heapq
from copy import copy
from typing import TYPE_CHECKING

from mainspring.jobs.model import State
from mainspring.queries.jobs import MOST_KEYS

if TYPE_CHECKING:
    from mainspring.engines.memory.tables import Tables
    from mainspring.jobs.model import Job
    from mainspring.queries.jobs import FirstInLine, ListJobs


def list_jobs(tables: Tables, operation: ListJobs) -> list[Job]:
    """List jobs, newest first."""
    which = operation.filter
    before, state, function, unique = which.before, which.state, which.function, which.unique
    matching = (
        job_id
        for job_id, job in tables.jobs.items()
        if (before is None or job_id < before)
        and (state is None or job.state == state)
        and (function is None or job.function == function)
        and (unique is None or job.unique == unique)
    )
    return [copy(tables.jobs[job_id]) for job_id in heapq.nlargest(which.limit, matching)]


def first_in_line(tables: Tables, operation: FirstInLine) -> dict[bytes, int]:
    """Read since when the first ones have waited; see ``FirstInLine``."""
    jobs = tables.jobs

    def is_pending(job_id: int) -> bool:
        job = jobs.get(job_id)
        return job is not None and job.state == State.PENDING

    found = {}
    for function in operation.functions:
        firsts = [
            jobs[job_id]
            for pending in tables.pending.get(function, ())
            for job_id in pending.firsts(is_pending, MOST_KEYS)
        ]
        if firsts:
            found[function] = min(max(job.created_us, job.due_us) for job in firsts)
    return found
