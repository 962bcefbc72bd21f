"""Criteria of requests as a filter of stored jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.api.errors import ApiError, Code
from mainspring.api.jobs import STATE_BY_NAME
from mainspring.byte_names import name_bytes
from mainspring.clock import to_us
from mainspring.jobs.tags import check_tags
from mainspring.namespaces import key_of_text
from mainspring.queries.filters import JobFilter
from mainspring.workflows.model import function_named

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from mainspring.api.job_filters import JobCriteria
    from mainspring.api.jobs import List
    from mainspring.jobs.model import State


async def filter_of(
    criteria: JobCriteria | List, namespace: str, find_run: Callable[[str, str], Awaitable[int]]
) -> JobFilter:
    """Return the filter for jobs of a namespace. ``find_run`` returns the number of a run of a namespace. Raises ApiError."""
    states = [criteria.state] if isinstance(criteria.state, str) else criteria.state or ()
    return JobFilter(
        states=tuple(dict.fromkeys(map(_state, states))),
        function=None if criteria.function is None else function_named(criteria.function, namespace),
        namespace=namespace,
        unique=None if criteria.unique is None else name_bytes(criteria.unique),
        key=None if criteria.key is None else criteria.key.encode(),
        schedule=None if criteria.schedule is None else key_of_text(namespace, criteria.schedule),
        run=None if criteria.workflow is None else await find_run(namespace, criteria.workflow),
        error_type=criteria.error_type,
        tag=None if criteria.tag is None else check_tags((criteria.tag,), "tag")[0],
        created_from_us=_time_us(criteria.created_from),
        created_to_us=_time_us(criteria.created_to),
    )


def _state(name: str) -> State:
    state = STATE_BY_NAME.get(name)
    if state is None:
        raise ApiError(Code.INVALID, f"there is no state {name!r}; there are {', '.join(STATE_BY_NAME)}")
    return state


def _time_us(time: datetime | None) -> int:
    """Return a time in microseconds, at least 1: 0 stands for no time."""
    return 0 if time is None else max(to_us(time.timestamp()), 1)
