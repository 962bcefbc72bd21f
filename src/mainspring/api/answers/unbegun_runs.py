"""Lists of runs that have not begun: the waiting jobs of workflows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from mainspring import namespaces
from mainspring.api.answers.waiting import Later, read_page
from mainspring.jobs.model import State
from mainspring.jobs.store import CountLive
from mainspring.namespaces import name_of, namespace_of
from mainspring.queries.filters import JobFilter
from mainspring.queries.jobs import ListJobs
from mainspring.storage.query import Page
from mainspring.workflows.model import Key
from mainspring.workflows.store import Unbegun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.api.workflows import List
    from mainspring.jobs.model import Job
    from mainspring.jobs.service import JobService
    from mainspring.jobs.store import Counted
    from mainspring.workflows.requests import Failed
    from mainspring.workflows.store import Shown

STATES: Final = {"scheduled": State.SCHEDULED, "pending": State.PENDING}
"""The statuses of runs that have not begun, with the states of their jobs."""


class Workflows(Protocol):
    """The workflows of a node; `workflows.service` implements it."""

    def functions(self) -> Iterable[bytes]:
        """Return the functions that are workflows."""

    def show(self, key: Key, done: Callable[[Shown], None], failed: Failed) -> None:
        """Read one run; without one, the jobs that the key may name, whose runs have not begun."""


class UnbegunRuns:
    """The jobs of workflows whose runs have not begun."""

    def __init__(self, service: JobService, workflows: Workflows) -> None:
        self._service = service
        self._workflows = workflows

    async def matching(self, request: List, before: int | None) -> Page[Unbegun]:
        """Return those that match a request, with ids below ``before``, newest first. All from `Page.next` on are there."""
        if request.since is not None or request.open or request.closed or request.parked or request.stranded:
            return Page([])
        if request.status is not None and request.status not in STATES:
            return Page([])
        states = [state for name, state in STATES.items() if request.status in {None, name}]
        page = await (
            self._named(request.namespace, request.id, states)
            if request.id is not None
            else self._all(request, states, before)
        )
        found = [
            job
            for job in page.items
            if (before is None or job.id < before)
            and (request.type is None or job.function == namespaces.key(request.namespace, request.type.encode()))
        ]
        found.sort(key=lambda job: -job.id)
        return Page([Unbegun(job, is_workflow=True) for job in found], page.next, page.searched_us)

    async def _named(self, namespace: str, workflow_id: str, states: list[State]) -> Page[Job]:
        key = Key(workflow_id=workflow_id, namespace=namespace)
        shown: Shown = await Later(lambda done, failed: self._workflows.show(key, done, failed))
        jobs = shown if isinstance(shown, list) else []
        return Page([one.job for one in jobs if one.is_workflow and one.job.state in states])

    async def _all(self, request: List, states: list[State], before: int | None) -> Page[Job]:
        """Read the jobs of each function that has any by the store's counts: usually none."""
        functions = [
            function
            for function in self._workflows.functions()
            if namespace_of(function) == request.namespace and request.type in {None, name_of(function).decode()}
        ]
        if not functions:
            return Page([])
        counted: Counted = await Later(lambda done, failed: self._service.put(CountLive(functions), done, failed))
        pages: list[Page[Job]] = []
        for function, state in sorted({(function, state) for function, state, _ in counted.counts if state in states}):
            where = JobFilter(states=(State(state),), function=function)
            query = ListJobs(where=where, after=before, limit=request.limit)
            pages.append(await read_page(self._service.ask if request.partial else self._service.gather, query))
        jobs = [job for page in pages for job in page.items]
        places = [(page.next, page.searched_us) for page in pages if page.next is not None]
        return Page(jobs, *max(places)) if places else Page(jobs)
