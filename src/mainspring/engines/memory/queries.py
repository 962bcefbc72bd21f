"""The read side in memory."""

from __future__ import annotations

from copy import copy
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.engines.memory.tables import Tables
    from mainspring.jobs.model import Job
    from mainspring.queries.jobs import ListJobs


def list_jobs(tables: Tables, operation: ListJobs) -> list[Job]:
    """List jobs, newest first."""
    which = operation.filter
    matching = (
        copy(tables.jobs[job_id])
        for job_id in sorted(tables.jobs, reverse=True)
        if (which.before is None or job_id < which.before)
        and (which.state is None or tables.jobs[job_id].state == which.state)
        and (which.function is None or tables.jobs[job_id].function == which.function)
        and (which.unique is None or tables.jobs[job_id].unique == which.unique)
    )
    return list(islice(matching, which.limit))
