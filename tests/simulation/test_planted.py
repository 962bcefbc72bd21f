"""The simulation detects planted faults: each test removes one guard, and the runs must fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.faces.gearman.peer import Peer
from mainspring.jobs import dispatch
from mainspring.jobs.assignment import Assigner, PendingGrabs
from mainspring.jobs.claiming import Claiming
from mainspring.jobs.dispatch import Dispatch
from mainspring.jobs.function_index import Counting
from mainspring.jobs.intake import Intake
from mainspring.jobs.outcomes import OutcomeReader, Waits
from mainspring.jobs.service import Workers
from mainspring.jobs.settlement import Ends
from mainspring.jobs.table import Uniques
from mainspring.wire.gearman_protocol import Type, response

from .stores import SimulationError, simulate
from .wires import wait_for_answers

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import StoreError
    from mainspring.jobs.held import FunctionQueue, Held, Worker
    from mainspring.jobs.model import Job

Plant = pytest.MonkeyPatch


def is_caught(seeds: int, store: str = "memory", *, first: int = 0) -> None:
    """Check that one of the runs fails; ``first`` is shortly before the seed that does today."""
    with pytest.raises(SimulationError):
        simulate(store, range(first, first + seeds))


def test_notifying_listeners_before_the_commit_is_detected(monkeypatch: Plant) -> None:
    put = Ends._put

    def hasty(self: Ends, pending: Any) -> None:
        put(self, pending)
        self._settled([pending], set())

    monkeypatch.setattr(Ends, "_put", hasty)
    is_caught(20)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_acknowledging_jobs_before_the_commit_is_detected(monkeypatch: Plant, store: str) -> None:
    submit = Intake.submit

    def hasty(self: Intake, jobs: list[Job], accepted: Callable[..., None], refused: Callable[..., None]) -> None:
        accepted([job.id for job in jobs], {})
        submit(self, jobs, lambda _ids, _joined: None, lambda _error: None)

    monkeypatch.setattr(Intake, "submit", hasty)
    is_caught(20, store)


def test_waking_no_substitute_for_a_worker_with_another_job_is_detected(monkeypatch: Plant) -> None:
    def forgetful(self: Assigner, worker: Worker) -> Held | None:
        if worker.asleep or worker.woken_for is not None:
            self._dispatch.answered(worker)
            self._dispatch.rouse(worker)
        held = self._dispatch.grab(worker)
        if held is not None:
            self.start(held, worker)
            self.claiming.refill(held.queue)
        return held

    monkeypatch.setattr(Assigner, "grab", forgetful)
    is_caught(200, first=35)


def test_counting_jobs_in_flight_after_a_failure_is_detected(monkeypatch: Plant) -> None:
    def careless(_self: Intake, _jobs: list[Job], error: StoreError, refused: Callable[[StoreError], None]) -> None:
        refused(error)

    monkeypatch.setattr(Intake, "_not_submitted", careless)
    is_caught(50)


def test_not_retrying_settlements_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(Ends, "_not_settled", lambda _self, _batch, _error: None)
    is_caught(50)


def test_returning_a_lost_workers_jobs_to_it_is_detected(monkeypatch: Plant) -> None:
    def backwards(self: Workers, worker: Worker) -> None:
        queues = list(worker.abilities)
        self._settling.worker_gone(worker, "gone")
        self._dispatch.leave(worker)
        for queue in queues:
            self._dispatch.unregister(worker, queue)
            self._left(queue)

    monkeypatch.setattr(Workers, "gone", backwards)
    is_caught(200)


def test_new_functions_without_their_stored_counts_are_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(dispatch, "MAX_IDLE_FUNCTIONS", 0)
    monkeypatch.setattr(Counting, "ask", lambda _self, _queue: None)
    is_caught(20)


def test_foreground_jobs_beside_the_stored_ones_of_a_row_are_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(dispatch, "MAX_IDLE_FUNCTIONS", 0)
    monkeypatch.setattr(Dispatch, "may_live", lambda self, name: name in self.queues and bool(self.queues[name].live))
    is_caught(100, first=15)


def test_a_query_overtaken_by_a_background_job_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(Uniques, "overtake", lambda _self, _key: None)
    is_caught(400, first=80)


def test_dropping_a_foreground_job_that_is_being_stored_is_detected(monkeypatch: Plant) -> None:
    def eager(self: Ends, held: Held) -> None:
        assigner = self._assigner
        assigner.detach(held)
        if self._table.held.get(held.handle) is held:
            if not held.stored and not self._listeners.of(held.job.id):
                assigner.release(held)
                return
            self._dispatch.push(held, first=True)
            assigner.serve(held.queue)

    def hasty(self: Waits, listener: Any) -> None:
        listener.gone = True
        for job_id in self._listeners.leave(listener, 1000):
            held = self._table.find(job_id)
            if held is not None and not held.stored and held.worker is None:
                self._assigner.release(held)

    monkeypatch.setattr(Ends, "_requeue", eager)
    monkeypatch.setattr(Waits, "gone", hasty)
    is_caught(400, first=40)


def test_one_answer_for_all_clients_of_an_unknown_job_is_detected(monkeypatch: Plant) -> None:
    def missing(self: OutcomeReader, job_id: int, waits: list[Any]) -> None:
        self._end(waits)
        if self._handles.of(job_id) not in self._table.held:
            self._listeners.pop(job_id)
            waits[0].unknown()

    monkeypatch.setattr(OutcomeReader, "_missing", missing)
    is_caught(400, first=25)


def test_a_failed_claim_that_never_ends_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(Claiming, "_not_claimed", lambda _self, _queue, _error: None)
    is_caught(100)


def test_losing_a_request_for_a_job_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(PendingGrabs, "answer_all", lambda _self, _queue: None)
    is_caught(50, first=20)


def test_keeping_used_credit_is_detected(monkeypatch: Plant) -> None:
    withdraw = Dispatch.withdraw

    def generous(worker: Worker) -> None:
        if worker.streams and worker.credit == 0:
            worker.credit = 1
        else:
            withdraw(worker)

    monkeypatch.setattr(Dispatch, "withdraw", staticmethod(generous))
    is_caught(50)


def test_an_echo_before_the_commit_is_detected(monkeypatch: Plant) -> None:
    def hasty(peer: Any, args: list[bytes]) -> None:
        peer.outbox.send(response(Type.ECHO_RES, args[0]))

    monkeypatch.setitem(_handlers(), Type.ECHO_REQ, hasty)
    is_caught(100)


def test_keeping_a_worker_that_has_ended_its_side_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(Peer, "sends_no_more", wait_for_answers)
    is_caught(400, first=10)


def _handlers() -> dict[int, Any]:
    from mainspring.faces.gearman.protocol import HANDLERS

    return HANDLERS


def test_a_claim_with_more_jobs_than_reported_is_detected(monkeypatch: Plant) -> None:
    claimed = Claiming._claimed

    def forgetful(self: Claiming, queue: FunctionQueue, term: int, jobs: list[Job], *numbers: Any) -> None:
        claimed(self, queue, term, jobs[:1] if len(jobs) > 1 else jobs, *numbers)

    monkeypatch.setattr(Claiming, "_claimed", forgetful)
    is_caught(50)
