"""Calls that read one run: its details and its history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from mainspring.api.answers.run_rows import activity_info, run_details, status_name, unbegun_details
from mainspring.api.answers.waiting import Later
from mainspring.api.errors import ApiError, Code, check_number
from mainspring.api.workflows import Events, History, RunDetails, Show
from mainspring.workflows.history_files import event_to_json
from mainspring.workflows.model import Key, Status
from mainspring.workflows.store import Unbegun
from mainspring.workflows.swf_events import swf_event

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from mainspring.api.answers.jobs import JobCalls
    from mainspring.api.answers.registry import Handlers
    from mainspring.api.answers.run_lookup import RunLookup
    from mainspring.api.workflows import ActivityInfo
    from mainspring.jobs.service import JobService
    from mainspring.storage.query import Page
    from mainspring.workflows.history import Event
    from mainspring.workflows.requests import Failed
    from mainspring.workflows.store import ShownRun

MOST_JOBS: Final = 100
"""Open activities whose jobs are read for the details of a run."""
_WITHOUT_ERROR: Final = frozenset({Status.OPEN, Status.COMPLETED, Status.CONTINUED_AS_NEW})


class ReadsRuns(Protocol):
    """The runs of a node; `workflows.service` implements it."""

    def history(
        self,
        run: int,
        first: int,
        limit: int,
        done: Callable[[Page[Event]], None],
        failed: Failed,
        *,
        namespace: str,
    ) -> None:
        """Read up to ``limit`` events of a run of a namespace from the event ``first`` on."""

    def stranded(self) -> Collection[tuple[str, str, str]]:
        """Return namespaces, types and versions of runs that have waited for a minute for a worker with their code."""


class RunReadingCalls:
    """Answers with all about one run."""

    def __init__(self, workflows: ReadsRuns, service: JobService, jobs: JobCalls, runs: RunLookup) -> None:
        self._workflows = workflows
        self._service = service
        self._jobs = jobs
        self._runs = runs
        self.handlers: Handlers = {Show: self._show, History: self._history}

    async def _show(self, request: Show) -> RunDetails:
        shown = await self._runs.find(request.namespace, request.key)
        if isinstance(shown, Unbegun):
            return unbegun_details(self._runs.unbegun_info(shown), shown.job)
        info = self._runs.info(shown, frozenset(self._workflows.stranded()))
        row = shown.row
        root = None if Status(row.status) in _WITHOUT_ERROR else await self._jobs.find(row.root, row.namespace)
        return run_details(
            info,
            shown,
            await self._activities(shown),
            None if root is None else root.error,
            parent=await self._parent(shown),
            handle_of=self._service.handle_of,
        )

    async def _parent(self, shown: ShownRun) -> str | None:
        """Return the key of a child's parent."""
        run = shown.state.parent_run
        if not run:
            return None
        parent = await self._runs.show(Key(run=run, namespace=shown.row.namespace))
        return self._runs.handle(run if isinstance(parent, list) else parent.row.root, run)

    async def _activities(self, shown: ShownRun) -> list[ActivityInfo]:
        """Return the open activities of a run, the first ones with what their jobs add."""
        found: list[ActivityInfo] = []
        for activity in shown.state.activities.values():
            namespace = shown.row.namespace
            reads = activity.job and len(found) < MOST_JOBS
            job = await self._jobs.find(activity.job, namespace) if reads else None
            found.append(activity_info(self._service.handle_of(activity.job).decode(), activity, job))
        return found

    async def _history(self, request: History) -> Events:
        check_number("limit", request.limit)
        if request.first < 1:
            raise ApiError(Code.INVALID, f"from is the number of an event, from 1 on, not {request.first}")
        shown = await self._runs.find(request.namespace, request.key)
        if isinstance(shown, Unbegun):
            return Events([], None, self._runs.unbegun_info(shown).status)
        row = shown.row
        page: Page[Event] = await Later(
            lambda done, failed: self._workflows.history(
                row.id, request.first, request.limit, done, failed, namespace=request.namespace
            )
        )
        if request.exact:
            events = [event_to_json(event) for event in page.items]
        else:
            events = [swf_event(event, native=request.native) for event in page.items]
        following = shown.state.new_run
        return Events(
            events,
            None if page.next is None else page.items[-1].id + 1,
            status_name(row.status),
            self._runs.handle(row.root, row.id),
            self._runs.handle(row.root, following) if following else None,
        )
