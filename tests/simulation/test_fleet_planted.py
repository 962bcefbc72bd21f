"""The simulation of a fleet detects planted faults: each test removes one guard, and the runs must fail."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring.clock import to_us
from mainspring.engines.memory import engine, jobs
from mainspring.faces.gearman.face import GearmanFace
from mainspring.faces.gearman.peer import Peer
from mainspring.jobs import sharing
from mainspring.jobs import store as ops
from mainspring.jobs.dispatch import Dispatch
from mainspring.jobs.foreground import Foreground
from mainspring.jobs.model import State
from mainspring.jobs.outcomes import Subscriptions
from mainspring.jobs.rules import Event
from mainspring.jobs.service import JobService
from mainspring.nodes import model
from mainspring.nodes.lease_manager import RETRY_DELAY, LeaseManager
from mainspring.nodes.model import SETTLE
from mainspring.server.fleet import Fleet, StoreClock
from tests.shared_memory import SharedMemoryEngine

from .fleet.running import simulate_fleet
from .fleet.sessions import SessionWorld
from .fleet.store import Way
from .fleet.world import FleetWorld
from .stores import SimulationError
from .wires import wait_for_answers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.clock import Clock
    from mainspring.engines.memory.tables import Tables
    from mainspring.ids import Term
    from mainspring.jobs.model import Job
    from mainspring.nodes.model import NodeRow
    from mainspring.storage.engine import Answer, Committed, Operation

    from .fleet.clocks import MachineClock

Plant = pytest.MonkeyPatch


class Hashed(FleetWorld):
    """A run in which a job may temporarily have no node: its slot belongs to a lost node whose loss is not detected yet."""

    strategies = ("id_hash",)


def plant(patches: Plant, kind: type[Operation], handler: Callable[[Tables, Any], object]) -> None:
    """Replace the handler of an operation in memory."""
    patches.setitem(engine._HANDLERS, kind, handler)


def is_caught(seeds: int, *, by: str, kind: type[FleetWorld] = FleetWorld, first: int = 0) -> None:
    """Check that one of the runs fails for the right reason. (Others may fail for its consequences.)"""
    for seed in range(first, first + seeds):
        try:
            simulate_fleet(seed, kind=kind)
        except SimulationError as error:
            if re.search(by, str(error)):
                return
    pytest.fail("no run has detected the fault")


def _machine(lease_manager: LeaseManager) -> MachineClock:
    """Return the uncorrected clock of a node's machine."""
    port = lease_manager._port
    assert isinstance(port, Way)
    return port._clock


# ---- terms and leases ----


def test_committing_groups_of_ended_terms_is_detected(monkeypatch: Plant) -> None:
    commit = SharedMemoryEngine.commit

    def unfenced(self: SharedMemoryEngine, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        content = self._content
        ended, content.ended = content.ended, set()
        try:
            commit(self, group, committed, answer)
        finally:
            content.ended = ended

    monkeypatch.setattr(SharedMemoryEngine, "commit", unfenced)
    is_caught(20, by="of an ended term was committed")


def test_missing_fencing_by_the_nodes_own_clock_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(
        LeaseManager, "check", lambda self: self.lease.remaining(self._clock.monotonic()) or RETRY_DELAY
    )
    is_caught(20, by="still holds")


def test_assigning_jobs_after_the_end_of_the_lease_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(LeaseManager, "may_hand_out", lambda _: True)
    is_caught(400, by="after the end of the node's lease", first=100)


def test_releasing_jobs_before_their_term_is_ended_is_detected(monkeypatch: Plant) -> None:
    async def hasty(self: LeaseManager) -> None:
        for row in self.membership.mine(self._clock.monotonic()):
            self._node.recover([row.term])
            await self._port.end(row.term, row.counter)

    monkeypatch.setattr(LeaseManager, "_end_dead_terms", hasty)
    is_caught(40, by="given back before it was ended")


def test_judging_death_by_wall_clocks_is_detected(monkeypatch: Plant) -> None:
    row = Fleet.row

    def stamped(self: Fleet, counter: int) -> NodeRow:
        return msgspec.structs.replace(row(self, counter), started_us=to_us(_machine(self.lease_manager).wall()))

    async def by_wall(self: LeaseManager) -> None:
        wall = _machine(self).wall()
        for other in self.membership.live():
            if other.term != self.term and wall - other.started_us / 1_000_000 > other.lease:
                await self._port.end(other.term, other.counter)
                self._node.recover([other.term])

    monkeypatch.setattr(Fleet, "row", stamped)
    monkeypatch.setattr(LeaseManager, "_end_dead_terms", by_wall)
    is_caught(20, by="during its lease")


def test_accepting_settlements_of_any_term_is_detected(monkeypatch: Plant) -> None:
    def careless(tables: Tables, operation: ops.Settle) -> set[int]:
        for settlement in operation.settlements:
            job = tables.jobs.get(settlement.job.id)
            if job is not None and not State(job.state).ended:
                if job.state == State.SCHEDULED:
                    jobs.enter(tables, job, Event.DUE)
                if job.state == State.PENDING:
                    jobs.enter(tables, job, Event.CLAIM)
                job.term = settlement.job.term
        return jobs.settle(tables, operation)

    plant(monkeypatch, ops.Settle, careless)
    is_caught(400, by="is taken", first=10)


def test_a_window_without_the_new_term_is_detected(monkeypatch: Plant) -> None:
    begin = JobService.begin

    def forgetful(self: JobService, term: Term) -> None:
        if self.term:
            self.term = term
        else:
            begin(self, term)

    monkeypatch.setattr(JobService, "begin", forgetful)
    is_caught(40, by="takes no part")


# ---- sessions ----


@pytest.mark.parametrize(
    ("rule", "by"),
    [
        (lambda row, since, asked, unbroken: asked >= since + 2 * row.look and unbroken >= SETTLE, "is open"),
        (lambda row, _, __, unbroken: row.unlisted and unbroken >= SETTLE, "just after"),
        (lambda row, since, asked, _: row.unlisted and asked >= since + 2 * row.look, "itself away"),
    ],
    ids=["session", "counter", "observer"],
)
def test_early_deaths_without_one_of_the_conditions_are_detected(monkeypatch: Plant, rule: Any, by: str) -> None:
    monkeypatch.setattr(model, "session_proves_death", rule)
    is_caught(20, by=by, kind=SessionWorld)


def test_handing_out_jobs_without_a_session_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(LeaseManager, "may_hand_out", LeaseManager.lease_valid)
    is_caught(60, by="found dead early", kind=SessionWorld, first=30)


# ---- waiting clients ----


def test_removing_the_waiters_of_all_nodes_is_detected(monkeypatch: Plant) -> None:
    def rude(tables: Tables, operation: ops.Unsubscribe) -> set[int]:
        for job_id in operation.ids:
            tables.waits.pop(job_id, None)
        return jobs.leave(tables, operation)

    plant(monkeypatch, ops.Unsubscribe, rude)
    is_caught(200, by="is not to be dropped")


def test_the_relay_as_the_only_source_of_outcomes_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(sharing, "REFRESH_INTERVAL", 1e9)
    is_caught(60, by="never ends")


def test_the_relay_as_the_only_source_of_work_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(sharing, "BACKLOG_INTERVAL", 1e9)
    is_caught(60, by="never ends")


def test_registering_waiters_without_a_term_is_detected(monkeypatch: Plant) -> None:
    def find(
        self: Subscriptions, ids: list[int], found: Callable[[dict[int, Job]], None], failed: Any, room: int = 0
    ) -> ops.Subscribe:
        operation = ops.Subscribe(self._table.term, ids, room)
        self._commits.put(operation, found, failed)
        return operation

    monkeypatch.setattr(Subscriptions, "find", find)
    is_caught(40, by="which is not its own")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_leaving_a_job_that_another_client_of_the_node_joins_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(Subscriptions, "waited", lambda _self, _job_id, _term: None)
    is_caught(400, by="although a client waits")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_putting_a_job_back_into_its_queue_twice_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(Dispatch, "restore", staticmethod(lambda held: Dispatch.push(held, first=True)))
    is_caught(400, by="size of", first=1700)


def test_reporting_an_unknown_job_twice_is_detected(monkeypatch: Plant) -> None:
    def found(self: Subscriptions, wanted: list[int], jobs: dict[int, Job]) -> None:
        for job_id in wanted:
            if job_id not in jobs:
                self._tell_gone(job_id)
            elif State(jobs[job_id].state).ended:
                self._look_up(job_id)

    monkeypatch.setattr(Subscriptions, "_found", found)
    is_caught(200, by="for which it does not wait", first=118)


# ---- answers ----


def test_answers_with_the_length_of_the_first_term_are_detected(monkeypatch: Plant) -> None:
    created = GearmanFace.created

    def once(self: GearmanFace, job_id: int) -> bytes:
        if not self._created:
            created(self, job_id)
        return next(iter(self._created.values()))

    monkeypatch.setattr(GearmanFace, "created", once)
    is_caught(60, by="acknowledged and not stored|another job.s answer")


def test_answers_out_of_order_without_a_worker_are_detected(monkeypatch: Plant) -> None:
    asks = Foreground.asks_the_store

    def hopeful(self: Foreground, job: Job) -> bool:
        return bool(job.unique)

    submit = Foreground.submit

    def submit_foreground(self: Foreground, *args: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Foreground, "asks_the_store", asks)
            submit(self, *args)

    monkeypatch.setattr(Foreground, "asks_the_store", hopeful)
    monkeypatch.setattr(Foreground, "submit", submit_foreground)
    is_caught(60, by="another job.s answer")


def test_hints_about_all_waiting_jobs_are_detected(monkeypatch: Plant) -> None:
    tell = SharedMemoryEngine._tell
    monkeypatch.setattr(SharedMemoryEngine, "_tell", lambda self, waits, _: tell(self, waits, {}))
    is_caught(60, by="busy for ever|come to rest", kind=Hashed, first=110)


# ---- workers that leave ----


def test_keeping_a_worker_that_has_ended_its_side_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(Peer, "sends_no_more", wait_for_answers)
    is_caught(60, by="job .* has stood still at .*running.*half open")


# ---- nodes that start and stop ----


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_stopping_node_that_takes_part_again_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(JobService, "end", JobService.hand_back)
    is_caught(400, by="a graceful stop leaves")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_assigning_jobs_without_a_term_is_detected(monkeypatch: Plant) -> None:
    def resume(self: JobService) -> None:
        self.dispatch.paused = self._ends
        for queue in self.dispatch.queues.values():
            self.assigner.serve(queue)

    monkeypatch.setattr(JobService, "resume", resume)
    is_caught(1000, by="which is not its own", first=1200)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_due_times_by_the_machines_wall_clock_are_detected(monkeypatch: Plant) -> None:
    def begin(self: StoreClock, clock: Clock) -> None:
        self.monotonic = clock.monotonic
        self.wall = lambda: clock.wall() + self.offset  # type: ignore[method-assign]
        self.offset = 0.0

    monkeypatch.setattr(StoreClock, "__init__", begin)
    is_caught(1000, by="never ends")
