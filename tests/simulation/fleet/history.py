"""The expected content of a fleet's store, computed a second time from its operations, with every invariant checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import State
from mainspring.storage.engine import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mainspring.engines.memory.tables import Tables
    from mainspring.jobs.model import Job
    from mainspring.jobs.rules import Settlement
    from mainspring.storage.engine import Operation


class FleetHistory:
    """The holder, the term, the waiting nodes and the end of each job. It survives all nodes.

    ``names`` maps each term that was begun to its node, as in the store.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self.live: set[int] = set()
        self.ended: dict[int, State] = {}
        self.redriven: set[int] = set()
        self.dropped: set[int] = set()
        """Foreground jobs that were dropped because no client waited for them."""
        self.leases: dict[int, int] = {}
        """Terms of held jobs."""
        self.running: set[int] = set()
        """Held jobs that are recorded as running."""
        self.waits: dict[int, set[int]] = {}
        self.foreground: set[int] = set()
        self.uniques: dict[tuple[bytes, bytes], int] = {}
        self.ended_terms: set[int] = set()
        self._keys: dict[int, tuple[bytes, bytes]] = {}
        self.settled = self.stale = self.recovered = self.joined = 0

    def note(self, node: str, group: Sequence[Operation], outcomes: Sequence[Any]) -> None:
        """Record a committed group of a node."""
        pairs = sorted(zip(group, outcomes, strict=True), key=lambda pair: pair[0].phase)
        ends = sum(operation.phase < Phase.SLICES for operation in group)
        for operation, outcome in pairs[:ends]:
            self._note(node, operation, outcome)
        self.follow(node)
        for operation, outcome in pairs[ends:]:
            self._note(node, operation, outcome)

    def follow(self, node: str) -> None:
        """Record the store's own changes after the ends of jobs and before new submissions."""

    def _note(self, node: str, operation: Operation, outcome: Any) -> None:
        match operation:
            case ops.Recover():
                self._recover(operation.of, outcome)
            case ops.Settle():
                for settlement in operation.settlements:
                    self._settle(settlement, refused=settlement.job.id in outcome)
            case ops.Assign():
                for job in operation.jobs:
                    if self.leases.get(job.id) == job.term:
                        self.running.add(job.id)
            case ops.Cancel():
                if outcome.job is not None and outcome.before <= State.PENDING:
                    self._end(operation.id, State.CANCELLED)
            case ops.Wake():
                for job, _ in outcome.expired:
                    self._end(job.id, State.EXPIRED)
            case ops.Redrive():
                if outcome.redriven:
                    del self.ended[operation.id]
                    self.redriven.add(operation.id)
                    self.foreground.discard(operation.id)
                    self._begin(operation.id, self._keys.get(operation.id))
            case ops.Submit():
                for job in operation.jobs:
                    self._submit(node, job, outcome.get(job.id), operation.waiter)
            case ops.Unsubscribe():
                for job_id in operation.ids:
                    dropped = self._leave(job_id, operation.term)
                    assert dropped == (job_id in outcome), f"{job_id} is{'' if dropped else ' not'} to be dropped"
            case ops.Claim():
                for job in [job for jobs in outcome for job in jobs]:
                    assert job.id in self.live, f"{job.id} is claimed although it has ended"
                    self._lease(node, job.id, job.term)
            case ops.ClaimByKey():
                for job in outcome.jobs:
                    assert job.id in self.live, f"{job.id} is claimed although it has ended"
                    self._lease(node, job.id, job.term)
            case ops.Subscribe():
                for job in outcome.values():
                    if not State(job.state).ended:
                        self._wait(node, job.id, operation.term)
            case _:
                pass

    # ---- changes of a job ----

    def _submit(self, node: str, job: Job, found: ops.Found | None, waiter: int) -> None:
        if found is not None:
            self.joined += 1
            if found.id in self.live:
                if not job.foreground:
                    self.foreground.discard(found.id)
                if waiter:
                    self._wait(node, found.id, waiter)
            return
        assert job.id not in self.live, f"{job.id} is stored twice"
        assert job.id not in self.ended, f"{job.id} is stored again after its end"
        self._begin(job.id, (job.function, job.unique) if job.unique else None)
        if job.foreground:
            self.foreground.add(job.id)
        if waiter:
            self._wait(node, job.id, waiter)
        if job.state == State.LEASED:
            self._lease(node, job.id, job.term)

    def _begin(self, job_id: int, key: tuple[bytes, bytes] | None) -> None:
        self.live.add(job_id)
        if key is not None:
            rival = self.uniques.get(key)
            assert rival is None, f"{job_id} and {rival} are both live, and both are {key}"
            self.uniques[key] = job_id
            self._keys[job_id] = key

    def _lease(self, node: str, job_id: int, term: int) -> None:
        before = self.leases.get(job_id)
        assert before is None, f"{job_id} is leased under {term} while it is leased under {before}"
        assert self._names.get(term) == node, f"{node} leases {job_id} under {term}, which is not its own"
        self.leases[job_id] = term

    def _wait(self, node: str, job_id: int, term: int) -> None:
        assert self._names.get(term) == node, f"{node} waits for {job_id} under {term}, which is not its own"
        self.waits.setdefault(job_id, set()).add(term)

    def _settle(self, settlement: Settlement, *, refused: bool) -> None:
        job = settlement.job
        own = self.leases.get(job.id) == job.term
        assert own != refused, (
            f"{settlement.event} of {job.id} under {job.term} is{' refused' if refused else ' taken'}"
        )
        if refused:
            self.stale += 1
            return
        after = rules.target(settlement.event)
        if after.ended:
            self._end(job.id, after)
        else:
            self._give_back(job.id)

    def _give_back(self, job_id: int) -> None:
        assert job_id in self.live, f"{job_id} is released although it has ended"
        del self.leases[job_id]
        self.running.discard(job_id)

    def _end(self, job_id: int, state: State) -> None:
        assert job_id in self.live, f"{job_id} ends a second time, as {state.name}"
        self.ended[job_id] = state
        self.settled += 1
        self._forget(job_id)

    def _forget(self, job_id: int) -> None:
        self.live.discard(job_id)
        self.leases.pop(job_id, None)
        self.running.discard(job_id)
        self.waits.pop(job_id, None)
        key = self._keys.get(job_id)
        if key is not None:
            del self.uniques[key]

    def _leave(self, job_id: int, term: int) -> bool:
        """Remove the waiters of a node. Return whether the job has to be dropped."""
        waits = self.waits.get(job_id)
        if waits is not None:
            waits.discard(term)
            if waits:
                return False
            del self.waits[job_id]
        if job_id not in self.live or job_id not in self.foreground:
            return False
        lease = self.leases.get(job_id)
        if lease is not None and (lease != term or job_id in self.running):
            return False
        self.dropped.add(job_id)
        self._forget(job_id)
        return True

    def _recover(self, of: Sequence[int] | None, outcome: ops.Recovered) -> None:
        assert of is not None, "jobs held under the terms of other nodes must not be released"
        for term in of:
            assert term in self.ended_terms, f"the jobs of term {term} are given back before it was ended"
        held = [job_id for job_id, term in self.leases.items() if term in of]
        assert outcome.number == len(held), f"{outcome.number} jobs of {of} are given back, not {len(held)}"
        self.recovered += len(held)
        for job_id in held:
            self._give_back(job_id)
        for term in of:
            for job_id in [job_id for job_id, terms in self.waits.items() if term in terms]:
                self._leave(job_id, term)

    # ---- comparing ----

    def agrees(self, tables: Tables) -> None:
        """Check that the store has the expected content and the right counts."""
        jobs = tables.jobs.values()
        assert {job.id for job in jobs if not State(job.state).ended} == self.live, "the live jobs differ"
        assert {job.id: job.term for job in jobs if State(job.state).held} == self.leases, "the leased jobs differ"
        assert {job.id for job in jobs if job.state == State.RUNNING} == self.running, (
            "the jobs recorded as running differ"
        )
        assert tables.waits == self.waits, "the waiters differ"
        assert tables.live == self.uniques, "the used uniques differ"
        counts: dict[tuple[bytes, int, int], int] = {}
        for job in jobs:
            state = State.LEASED if job.state == State.RUNNING else job.state
            key = (job.function, int(state), int(job.priority))
            counts[key] = counts.get(key, 0) + 1
        assert {key: number for key, number in tables.counts.items() if number} == counts, "the counts are wrong"
