"""A model of an engine, as simple as possible: one dictionary of jobs, searched from end to end, and the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import Counts, Job, State, StopRequest
from mainspring.jobs.rules import Event
from mainspring.namespaces import ANY, namespace_of
from mainspring.storage.engine import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.storage.engine import Operation


class Model:
    """The content of a store. Its outcomes are those of the operations' docstrings."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.stopping: dict[int, StopRequest] = {}
        """The requests to cancel held jobs."""

    def group(self, operations: Sequence[Operation]) -> list[Any]:
        """Run a group and return its outcomes."""
        outcomes: list[Any] = [None] * len(operations)
        for kind, placed in plan_of(operations).items():
            for place, operation in placed:
                outcomes[place] = _HANDLERS[kind](self, operation)
        return outcomes

    def in_order(self) -> list[Job]:
        """Return the jobs as they are claimed: by priority, then by age."""
        return sorted(self.jobs.values(), key=lambda job: (job.priority, job.id))

    def _enter(self, job: Job, event: Event) -> None:
        job.state = int(rules.step(State(job.state), event))
        if job.state < State.LEASED:
            job.term = 0
        elif State(job.state).ended and job.options is not None and job.options.forget:
            del self.jobs[job.id]

    def _live(self, functions: Iterable[bytes], unique: bytes) -> Job | None:
        names = set(functions)
        live = [
            job
            for job in self.jobs.values()
            if job.function in names and job.unique == unique != b"" and not State(job.state).ended
        ]
        return live[0] if live else None

    # ---- leases ----

    def settle(self, operation: ops.Settle) -> set[int]:
        """Settle jobs."""
        return {settlement.job.id for settlement in operation.settlements if not self._settle(settlement)}

    def _settle(self, settlement: rules.Settlement) -> bool:
        job = self.jobs.get(settlement.job.id)
        if job is None or not State(job.state).held or job.term != settlement.job.term:
            return False
        request = self.stopping.pop(job.id, None)
        if request is not None and settlement.event in rules.GIVES_BACK:
            settlement = copy_of(settlement)  # the engine under test gets the same one
            rules.cancel_on_request(settlement, request)
        job.attempt, job.suspects = settlement.counted, settlement.job.suspects
        job.due_us, job.started_us, job.ended_us = settlement.due_us, settlement.started_us, settlement.ended_us
        job.result, job.output_size = settlement.result, len(settlement.result)
        if settlement.event is Event.SUCCEED:
            job.payload, job.error = b"", b""
        job.error = settlement.error or job.error
        self._enter(job, settlement.event)
        return True

    def recover(self, operation: ops.Recover) -> ops.Recovered:
        """Recover the jobs of other terms."""
        held = [job for job in self.jobs.values() if State(job.state).held and job.term != operation.term]
        pending: dict[tuple[bytes, int], int] = {}
        given_back = [job for job in held if job.id not in self.stopping]
        for job in given_back:
            pending[job.function, job.priority] = pending.get((job.function, job.priority), 0) + 1
        ids = {job.id for job in given_back}
        settlements = rules.recovered(held)
        lost = ops.lost_attempts(one for one in settlements if one.job.id in ids)
        assert all(map(self._settle, settlements))
        return ops.Recovered(len(given_back), pending, lost=lost)

    def assign(self, operation: ops.Assign) -> None:
        """Record jobs as running."""
        for running in operation.jobs:
            job = self.jobs.get(running.id)
            if job is not None and State(job.state).held and job.term == running.term:
                job.attempt = running.attempt
                self._enter(job, Event.ASSIGN)

    def claim(self, operation: ops.Claim) -> list[list[Job]]:
        """Lease pending jobs."""
        return [self._claim(operation.term, want) for want in operation.wants]

    def _claim(self, term: int, want: ops.ClaimRequest) -> list[Job]:
        pending = [job for job in self.in_order() if job.function == want.function and job.state == State.PENDING]
        for job in pending[: want.limit]:
            self._enter(job, Event.CLAIM)
            job.term = term
        return [copy(job) for job in pending[: want.limit]]

    # ---- jobs that no node holds ----

    def submit(self, operation: ops.Submit) -> dict[int, ops.Found]:
        """Store new jobs."""
        joined = {}
        for job in operation.jobs:
            other = self._live([job.function], job.unique) or self._kept(job)
            if other is None:
                self.jobs[job.id] = copy(job)
            else:
                joined[job.id] = found(other)
        return joined

    def _kept(self, new: Job) -> Job | None:
        if new.options is None or new.options.keep_unique is None or not new.unique:
            return None
        since = rules.kept_since(new.created_us, new.options.keep_unique)
        kept = [
            job
            for job in self.jobs.values()
            if (job.function, job.unique, job.state) == (new.function, new.unique, State.SUCCEEDED)
            and job.options is not None
            and job.options.keep_unique is not None
            and job.ended_us > since
        ]
        return max(kept, key=lambda job: (job.ended_us, job.id), default=None)

    def cancel(self, operation: ops.Cancel) -> ops.Cancelled:
        """Cancel a job that no node holds."""
        job = self.jobs.get(operation.id)
        if job is None:
            return ops.Cancelled(None, 0)
        before = job.state
        if before < State.LEASED:
            self._enter(job, Event.CANCEL)
            job.ended_us, job.error = operation.now_us, operation.error
        return ops.Cancelled(copy(job), before)

    def request_stop(self, operation: ops.RequestStop) -> set[int]:
        """Keep requests to cancel held jobs."""
        jobs = [(self.jobs.get(job_id), term) for job_id, term in operation.jobs]
        held = {job.id for job, term in jobs if job is not None and State(job.state).held and term in {None, job.term}}
        self.stopping |= dict.fromkeys(held, operation.request)
        return held

    def redrive(self, operation: ops.Redrive) -> ops.Redriven:
        """Redrive an unsuccessful job."""
        job = self.jobs.get(operation.id)
        if job is None or State(job.state) not in rules.sources(Event.REDRIVE):
            return ops.Redriven(job and copy(job), redriven=False)
        rival = self._live([job.function], job.unique)
        if rival is not None:
            return ops.Redriven(copy(job), redriven=False, rival=rival.id)
        job.attempt = job.suspects = job.started_us = job.ended_us = job.expires_us = 0
        if operation.payload is not None:
            job.payload, job.input_size = operation.payload, len(operation.payload)
        job.due_us = operation.due_us or job.due_us
        self._enter(job, Event.REDRIVE_LATER if operation.due_us else Event.REDRIVE)
        return ops.Redriven(copy(job), redriven=True)

    def reschedule(self, operation: ops.Reschedule) -> ops.Rescheduled:
        """Reschedule a waiting job."""
        job = self.jobs.get(operation.id)
        if job is None:
            return ops.Rescheduled(None, 0, 0)
        before, priority = job.state, job.priority
        if before < State.LEASED:
            job.state = int(rules.rescheduled(State(before), operation.due_us, operation.now_us))
            job.due_us = job.due_us if operation.due_us is None else operation.due_us
            job.priority = job.priority if operation.priority is None else operation.priority
            job.expires_us = job.expires_us if operation.expires_us is None else operation.expires_us
        return ops.Rescheduled(copy(job), before, priority)

    def delete_ended(self, operation: ops.DeleteEnded) -> ops.Deleted:
        """Delete an ended job."""
        job = self.jobs.get(operation.id)
        if job is None or not State(job.state).ended:
            return ops.Deleted(job and copy(job), deleted=False)
        return ops.Deleted(self.jobs.pop(operation.id), deleted=True)

    def wake(self, operation: ops.Wake) -> ops.Woken:
        """Make due jobs pending, and expire late ones."""
        now_us, limit = operation.now_us, operation.rows
        late = sorted(
            (job for job in self._expiring() if job.expires_us <= now_us), key=lambda job: (job.expires_us, job.id)
        )
        expired = []
        for job in late[:limit]:
            before = job.state
            self._enter(job, Event.EXPIRE)
            job.ended_us = now_us
            expired.append((copy(job), before))
        woken: dict[tuple[bytes, int], int] = {}
        due = sorted((job for job in self._scheduled() if job.due_us <= now_us), key=lambda job: (job.due_us, job.id))
        for job in due[:limit]:
            self._enter(job, Event.DUE)
            key = (job.function, job.priority)
            woken[key] = woken.get(key, 0) + 1
        nexts = [job.due_us for job in self._scheduled()] + [job.expires_us for job in self._expiring()]
        return ops.Woken(woken, expired, min(nexts, default=0))

    def _scheduled(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.state == State.SCHEDULED]

    def _expiring(self) -> list[Job]:
        return [
            job
            for job in self.jobs.values()
            if job.expires_us and job.state < State.LEASED and not rules.was_tried(job)
        ]

    def sweep(self, operation: ops.Sweep) -> int:
        """Forget old ended jobs (as if there were no limit)."""
        forgotten = [
            job.id
            for job in self.jobs.values()
            if State(job.state).ended
            and job.ended_us < (operation.dead_before_us if job.state == State.FAILED else operation.ended_before_us)
        ]
        for job_id in forgotten:
            del self.jobs[job_id]
        return len(forgotten)

    # ---- reading ----

    def find(self, operation: ops.Find) -> dict[int, Job]:
        """Return jobs by their ids."""
        found = {job_id: copy(job) for job_id in operation.ids if (job := self._of(job_id, operation)) is not None}
        ops.leave_unread(found, operation.room)
        return found

    def _of(self, job_id: int, operation: ops.Find) -> Job | None:
        job = self.jobs.get(job_id)
        return job if job is not None and operation.namespace in {ANY, namespace_of(job.function)} else None

    def find_unique(self, operation: ops.FindUnique) -> list[ops.Found | None]:
        """Return live jobs by their uniques."""
        every = {job.function for job in self.jobs.values()}
        live = []
        for function, unique in operation.keys:
            if isinstance(function, ops.InNamespace):
                names = [name for name in every if namespace_of(name) == function.namespace]
            else:
                names = [function]
            live.append(self._live(names, unique))
        return [None if job is None else found(job) for job in live]

    def count(self, operation: ops.Count) -> dict[tuple[bytes, int, int], int]:
        """Return the counts."""
        del operation
        counts = Counts()
        for job in self.jobs.values():
            counts.add(job.function, job.state, job.priority)
        return dict(counts)


def copy(job: Job) -> Job:
    """Return a copy of a job."""
    return msgspec.structs.replace(job)


def copy_of(settlement: rules.Settlement) -> rules.Settlement:
    """Return a copy of the stored part of a settlement."""
    return rules.Settlement(
        settlement.job,
        settlement.event,
        settlement.counted,
        due_us=settlement.due_us,
        started_us=settlement.started_us,
        ended_us=settlement.ended_us,
        result=settlement.result,
        error=settlement.error,
    )


def found(job: Job) -> ops.Found:
    """Return a job as an operation reports that it was found."""
    return ops.Found(job.id, job.state, job.attempt)


_HANDLERS: dict[type[Operation], Callable[[Model, Any], Any]] = {
    ops.Recover: Model.recover,
    ops.Settle: Model.settle,
    ops.Assign: Model.assign,
    ops.Cancel: Model.cancel,
    ops.Redrive: Model.redrive,
    ops.RequestStop: Model.request_stop,
    ops.Reschedule: Model.reschedule,
    ops.DeleteEnded: Model.delete_ended,
    ops.Sweep: Model.sweep,
    ops.Wake: Model.wake,
    ops.Submit: Model.submit,
    ops.Claim: Model.claim,
    ops.Find: Model.find,
    ops.FindUnique: Model.find_unique,
    ops.Count: Model.count,
}
