"""The read side in memory."""

from __future__ import annotations

import heapq
from copy import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.engines.memory.tables import Tables
    from mainspring.jobs.model import Job
    from mainspring.queries.jobs import ListJobs


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
