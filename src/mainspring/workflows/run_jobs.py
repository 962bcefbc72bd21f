"""The jobs that one transaction creates, ends and deletes for runs.

A root job ends with its run; an open activity has a job, and so has a scheduled decision task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mainspring import namespaces
from mainspring.jobs.failures import CANCEL_REASON, failure
from mainspring.jobs.model import Job, Options, State, StopRequest, decode_options
from mainspring.workflows.ending import ended_root
from mainspring.workflows.model import decision_function
from mainspring.workflows.parking import needs_decision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.jobs.slices import JobLifecycle
    from mainspring.jobs.store import Withdrawn
    from mainspring.workflows.cache import Run
    from mainspring.workflows.history import ActivityTaskScheduled
    from mainspring.workflows.run_draft import RunDraft
    from mainspring.workflows.store import RunRow
    from mainspring.workflows.tables import RunTables


class RunJobs:
    """The jobs whose changes are written with those of their runs, and passed to the node after the commit."""

    def __init__(self, tables: RunTables) -> None:
        self._tables = tables
        self._new_roots: list[Job] = []
        self._taken: list[Job] = []
        self._rejected: list[Job] = []
        self._stopped: set[int] = set()
        self._new: list[Job] = []
        self._ended: list[Job] = []
        self._withdrawn: list[Withdrawn] = []
        self._replaced: list[Withdrawn] = []
        """Deleted jobs whose workers have reported the end themselves."""

    def add_roots(self, jobs: Sequence[Job]) -> None:
        """Add new root jobs."""
        self._new_roots += jobs

    def take(self, jobs: Sequence[Job]) -> None:
        """Add jobs that this transaction has turned into root jobs, as they were before."""
        self._taken += jobs

    async def stop(self, jobs: Sequence[int], now_us: int) -> None:
        """Store requests to cancel held jobs, and ask their workers to stop after the commit."""
        request = StopRequest(now_us, failure("Cancelled", CANCEL_REASON))
        self._stopped |= await self._tables.request_stop([(job, None) for job in jobs], request)

    def reject(self, job: Job) -> None:
        """End a root job whose run does not begin; see ``RunTables.reject_roots``."""
        self._rejected.append(job)

    # ---- the write ----

    async def write(self, changed: Sequence[RunDraft]) -> None:
        """Write the jobs that changed runs need or end."""
        await self._end(changed)
        await self._withdraw(changed)
        await self._submit(changed)

    async def _end(self, changed: Sequence[RunDraft]) -> None:
        """End the root jobs of closed runs."""
        closed = [found for found in changed if not found.is_open]
        roots = [job for found in closed if (job := ended_root(found.run.row, found.draft.events[-1])) is not None]
        if roots:
            self._ended += await self._tables.end_roots(roots)
        if self._rejected:
            self._ended += await self._tables.reject_roots(self._rejected)

    async def _withdraw(self, changed: Sequence[RunDraft]) -> None:
        """Delete the jobs that runs do not need any more."""
        ids: list[int] = []
        replaced: list[int] = []
        for found in changed:
            ids += found.draft.withdrawn
            row, state = found.run.row, found.run.state
            if row.decision and not (state.scheduled == found.run.task and needs_decision(state, row.parking)):
                (replaced if found.replaced else ids).append(row.decision)
                row.decision = 0
        if ids:
            self._withdrawn += await self._tables.withdraw(ids)
        if replaced:
            self._replaced += await self._tables.withdraw(replaced)

    async def _submit(self, changed: Sequence[RunDraft]) -> None:
        """Create the jobs of new activities and decision tasks."""
        lifecycle, term = self._tables.lifecycle, self._tables.term
        new = self._new
        for found in changed:
            run, draft = found.run, found.draft
            row, state = run.row, run.state
            for event in draft.submitted.values():
                new.append(_activity(row, event, draft.now_us))
            if not row.decision and needs_decision(state, row.parking):
                new.append(_decision(lifecycle.next_id(), run, draft.now_us))
                row.decision = new[-1].id
                run.task = state.scheduled
        if new:
            self._tables.after_rollback(lambda: lifecycle.dropped(reserved))
            reserved: list[Job] = []
            for job in new:
                reserved.append(job)
                allowed = lifecycle.reserve(job, term)
                assert allowed, "jobs of runs have no unique"
            joined = await self._tables.submit(new)
            assert not joined, "jobs of runs have no unique"

    # ---- after the commit ----

    def notify(self, lifecycle: JobLifecycle) -> None:
        """Pass the changes to the node."""
        if self._new_roots or self._taken:
            lifecycle.begun(self._new_roots, self._taken)
        if self._replaced:
            lifecycle.withdrawn(self._replaced, stop=False)
        if self._withdrawn:
            lifecycle.withdrawn(self._withdrawn)
        if self._new:
            lifecycle.stored(self._new)
        if self._ended:
            lifecycle.ended(self._ended)
        if self._stopped:
            lifecycle.stop(self._stopped, CANCEL_REASON)


def _decision(job_id: int, run: Run, now_us: int) -> Job:
    row, state = run.row, run.state
    return Job(
        job_id,
        decision_function(row.namespace, row.type, row.version),
        b"",
        priority=state.task_priority,
        state=int(State.PENDING),
        created_us=now_us,
        options=Options(run=(row.id, row.slot), ref=state.scheduled, forget=True),
    )


def _activity(row: RunRow, event: ActivityTaskScheduled, now_us: int) -> Job:
    options = decode_options(event.options) if event.options else _NO_OPTIONS
    return Job(
        event.job,
        namespaces.key(row.namespace, event.function),
        event.input,
        priority=event.task_priority,
        state=int(State.PENDING),
        created_us=now_us,
        options=msgspec.structs.replace(options, run=(row.id, row.slot), ref=event.id, forget=True),
        input_size=len(event.input),
        key=event.key,
    )


_NO_OPTIONS = Options()
