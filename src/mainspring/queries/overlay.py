"""Overlays a page of stored jobs with newer facts from a node's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.model import State
from mainspring.storage.query import Page

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.jobs.held import Held
    from mainspring.jobs.model import Job
    from mainspring.queries.jobs import ListJobs


def with_held(page: Page[Job], query: ListJobs, held: Iterable[Held]) -> Page[Job]:
    """Return the page with the jobs that a node holds: some run before the store has recorded it, some are not stored at all.

    Jobs that belong to a later page are left to that page.
    """
    stored = {job.id for job in page.items}
    seen: dict[int, Job] = {}
    for one in held:
        if one.job.id in stored or not one.stored or State.RUNNING in query.where.states:
            seen[one.job.id] = one.seen()
    states = query.where.states
    if not seen and not states:
        return page
    # The store has matched these, except that a job which a node has may be one that runs.
    newest = [job for job in page.items if job.id not in seen and (not states or job.state in states)]
    newest += (
        job
        for job in seen.values()
        if query.where.matches(job)
        and (query.after is None or job.id < query.after)
        and (page.next is None or job.id >= page.next)
    )
    newest.sort(key=lambda job: -job.id)
    if len(newest) <= query.limit:
        return page._replace(items=newest)
    last = newest[query.limit - 1]
    return Page(newest[: query.limit], last.id, last.created_us)
