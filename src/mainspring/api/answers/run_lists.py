"""The call that lists runs: those that have begun, and the waiting jobs of those that have not."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from mainspring.api.answers.run_lookup import is_stranded
from mainspring.api.answers.unbegun_runs import STATES, UnbegunRuns
from mainspring.api.answers.waiting import Later
from mainspring.api.errors import PAGE_LIMIT, ApiError, Code, check_number
from mainspring.api.workflows import STATUS_BY_NAME, List, Listed
from mainspring.clock import to_us
from mainspring.workflows.model import Status
from mainspring.workflows.store import ListRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from mainspring.api.answers.registry import Handlers
    from mainspring.api.answers.run_lookup import RunLookup
    from mainspring.jobs.service import JobService
    from mainspring.storage.query import Page
    from mainspring.workflows.model import Key
    from mainspring.workflows.requests import Failed
    from mainspring.workflows.store import Shown, ShownRun

CLOSED: Final = tuple(int(status) for status in Status if not status.open)


class ListsRuns(Protocol):
    """The runs of a node; `workflows.service` implements it."""

    def functions(self) -> Iterable[bytes]:
        """Return the functions that are workflows."""

    def list(self, query: ListRuns, done: Callable[[Page[ShownRun]], None], failed: Failed) -> None:
        """Read runs."""

    def show(self, key: Key, done: Callable[[Shown], None], failed: Failed) -> None:
        """Read one run; without one, the jobs that the key may name, whose runs have not begun."""

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
        after = None if request.after is None else self._runs.run_id(request.after)
        unbegun = await self._unbegun.matching(request, after)
        if request.status in STATES:
            waiting = [self._runs.unbegun_info(one) for one in unbegun]
            return Listed(waiting, waiting[-1].run if len(waiting) == request.limit else None)
        statuses: tuple[int, ...] = ()
        if request.status is not None:
            statuses = (STATUS_BY_NAME[request.status],)
        elif request.closed:
            statuses = CLOSED
        elif request.open or request.parked or request.stranded:
            statuses = (Status.OPEN,)
        stranded = frozenset(self._workflows.stranded())
        found: list[ShownRun] = []
        while stranded or not request.stranded:
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
            )
            page: Page[ShownRun] = await Later(partial(self._workflows.list, query))
            found += [one for one in page.items if not request.stranded or is_stranded(one, stranded)]
            after = page.next
            if after is None or len(found) >= request.limit:
                break
        rows = {one.row.id: self._runs.info(one, stranded) for one in found}
        last = found[-1].row.id if found and after is not None else 0
        rows |= {one.job.id: self._runs.unbegun_info(one) for one in unbegun if one.job.id > last}
        runs = [rows[run] for run in sorted(rows, reverse=True)[: request.limit]]
        return Listed(runs, runs[-1].run if runs and (after is not None or len(rows) > len(runs)) else None)
