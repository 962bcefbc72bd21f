"""The call that lists runs: those that have begun, and the waiting jobs of those that have not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from mainspring.api.answers.run_lookup import is_stranded
from mainspring.api.answers.text import rfc3339
from mainspring.api.answers.unbegun_runs import STATES, UnbegunRuns
from mainspring.api.answers.waiting import read_page
from mainspring.api.errors import PAGE_LIMIT, ApiError, Code, check_number
from mainspring.api.workflows import STATUS_BY_NAME, List, Listed
from mainspring.clock import to_us
from mainspring.sizes import PAGE
from mainspring.storage.query import Page
from mainspring.workflows.model import Status
from mainspring.workflows.store import ListRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from mainspring.api.answers.registry import Handlers
    from mainspring.api.answers.run_lookup import RunLookup
    from mainspring.jobs.service import JobService
    from mainspring.workflows.model import Key
    from mainspring.workflows.requests import Failed
    from mainspring.workflows.store import Shown, ShownRun

CLOSED: Final = tuple(int(status) for status in Status if not status.open)


class ListsRuns(Protocol):
    """The runs of a node; `workflows.service` implements it."""

    def functions(self) -> Iterable[bytes]:
        """Return the functions that are workflows."""

    def list(
        self, query: ListRuns, done: Callable[[Page[ShownRun]], None], failed: Failed, wanted: Callable[[], bool]
    ) -> None:
        """Read runs, as long as they are wanted."""

    def show(self, key: Key, done: Callable[[Shown], None], failed: Failed) -> None:
        """Read one run; without one, the jobs that the key may name, whose runs have not begun."""

    def list_part(
        self, query: ListRuns, done: Callable[[Page[ShownRun]], None], failed: Failed, wanted: Callable[[], bool]
    ) -> None:
        """Read the runs that one read finds: the page may be short and have a next one."""

    def stranded(self) -> Collection[tuple[str, str, str]]:
        """Return namespaces, types and versions of runs that have waited for a minute for a worker with their code."""


class RunListCalls:
    """Answers with lists of a node's runs."""

    def __init__(self, workflows: ListsRuns, service: JobService, runs: RunLookup) -> None:
        self._workflows = workflows
        self._unbegun = UnbegunRuns(service, workflows)
        self._runs = runs
        self.handlers: Handlers = {List: self._list}

    async def _list(self, request: List) -> Listed:
        check_number("limit", request.limit)
        if sum((request.open, request.closed, request.parked, request.stranded, request.status is not None)) > 1:
            raise ApiError(Code.INVALID, "give one of open, closed, parked, stranded and status")
        before = None if request.after is None else self._runs.run_id(request.after)
        unbegun = await self._unbegun.matching(request, before)
        stranded = frozenset(self._workflows.stranded())
        begun: Page[ShownRun] = Page([])
        if request.status not in STATES and (stranded or not request.stranded):
            begun = await self._begun(request, before, stranded)
        rows = {one.row.id: (one.row.started_us, self._runs.info(one, stranded)) for one in begun.items}
        rows |= {one.job.id: (one.job.created_us, self._runs.unbegun_info(one)) for one in unbegun.items}
        places = [(one.next, one.searched_us) for one in (begun, unbegun) if one.next is not None]
        place, searched_us = max(places, default=(0, 0))
        newest = sorted((run for run in rows if run >= place), reverse=True)
        if len(newest) > request.limit:
            newest = newest[: request.limit]
            place, searched_us = newest[-1], rows[newest[-1]][0]
        runs = [rows[run][1] for run in newest]
        following = self._runs.handle(place, place) if place else None
        return Listed(runs, following, rfc3339(searched_us)) if request.partial else Listed(runs, following)

    async def _begun(
        self, request: List, after: int | None, stranded: Collection[tuple[str, str, str]]
    ) -> Page[ShownRun]:
        """Read the runs that have begun."""
        statuses: tuple[int, ...] = ()
        if request.status is not None:
            statuses = (STATUS_BY_NAME[request.status],)
        elif request.closed:
            statuses = CLOSED
        elif request.open or request.parked or request.stranded:
            statuses = (Status.OPEN,)
        found: list[ShownRun] = []
        size = 0
        while True:
            query = ListRuns(
                namespace=request.namespace,
                status=statuses,
                parked=request.parked,
                needs_decision=request.stranded,
                type=request.type,
                workflow_id=request.id,
                since_us=to_us(request.since or 0),
                after=after,
                limit=PAGE_LIMIT if request.stranded else request.limit,
                bytes=PAGE.most,
            )
            page = await read_page(self._workflows.list_part if request.partial else self._workflows.list, query)
            found += [one for one in page.items if not request.stranded or is_stranded(one, stranded)]
            after = page.next
            size += page.size
            is_enough = not request.stranded or len(found) >= request.limit or bool(found and size >= PAGE.most)
            if after is None or request.partial or is_enough:
                return page._replace(items=found)
