"""Work that runs elsewhere under crashes, cancels and drains, with another system that honours keys; and planted faults.

The actors follow the rules of ``worker.watcher``: a key is durable before a submission, and its answer before the first look. A
worker may die between any two steps, and the node with it.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.external import store as external
from mainspring.external import unit
from mainspring.external.store import (
    BeginWork,
    End,
    EndWork,
    LookAtWork,
    Record,
    RecordWork,
    Starting,
    Status,
    Verdict,
    Work,
)
from mainspring.jobs import store as ops
from mainspring.jobs.model import State
from mainspring.jobs.rules import Event, Settlement
from tests.conformance.suite.driver import NOW, Store
from tests.engines import memory_engine, sqlite_engine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Engine

STEPS = 100


class OtherSystem:
    """Honours keys: two submissions with one key are one piece of work."""

    def __init__(self) -> None:
        self.works: dict[str, str] = {}
        """``running``, ``ended`` or ``cancelled``, by key."""
        self.jobs: dict[str, int] = {}

    def submit(self, key: str, job: int) -> str:
        self.works.setdefault(key, "running")
        self.jobs[key] = job
        return json.dumps(key)

    def cancel(self, key: str) -> None:
        if self.works[key] == "running":
            self.works[key] = "cancelled"


class World:
    """A node, its workers, users, and the other system."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.chance = random.Random(seed)
        self.other = OtherSystem()
        self.keys = 0
        self.held: dict[int, tuple[Job, Work | None]] = {}
        """The deliveries of the workers, with their submissions once they have answers."""
        self.wanted_ends: set[int] = set()
        """Jobs that a user, a failure or a timeout has ended."""
        self.handed_back: set[str] = set()

    def step(self) -> None:
        common = [self.submit, self.assign, self.begin, self.begin, self.look, self.end_elsewhere] * 3
        rare = [self.die, self.drain, self.cancel, self.fail, self.time_out, self.crash]
        acts: list[Callable[[], None]] = common + rare
        self.chance.choice(acts)()
        self.check()

    # ---- acts ----

    def submit(self) -> None:
        self.store.submit(self.store.job())

    def assign(self) -> None:
        for job in self.store.claim(limit=2):
            self.held[job.id] = job, None

    def some(self) -> int | None:
        return self.chance.choice(sorted(self.held)) if self.held else None

    def begin(self) -> None:
        """Begin a submission, and die at any step of it, or go on to watch."""
        job_id = self.some()
        if job_id is None or self.held[job_id][1] is not None:
            return
        job, _ = self.held[job_id]
        self.keys += 1
        ((work,),) = self.store.group(BeginWork([Starting(job.id, job.function, f"k{self.keys}", b"[]", 0)], NOW))
        if self.chance.random() < 0.2:
            self.release(job_id, Event.LOSE)
            return
        if not work.meta:
            meta = self.other.submit(work.key, job.id)
            if self.chance.random() < 0.3:
                self.release(job_id, Event.LOSE)
                return
            self.store.group(RecordWork([Record(job.id, work.number, meta)]))
        self.held[job_id] = job, work

    def release(self, job_id: int, event: Event) -> None:
        del self.held[job_id]
        self.store.settle(Settlement(self.store.present(job_id), event, 0))

    def die(self) -> None:
        """Lose a worker with all that it has."""
        for job_id in sorted(self.held)[::2]:
            self.release(job_id, Event.LOSE)

    def drain(self) -> None:
        for job_id in sorted(self.held):
            self.release(job_id, Event.RELEASE)

    def crash(self) -> None:
        """Kill the node: its leases are recovered."""
        self.held.clear()
        self.store.reopen()
        self.store.recover()

    def end(self, job_id: int, event: Event) -> None:
        del self.held[job_id]
        self.store.end(self.store.present(job_id), event)

    def cancel(self) -> None:
        """Cancel a job, wherever it is."""
        found = [job.id for job in self.store.list() if job.function == b"f" and not State(job.state).ended]
        if not found:
            return
        job_id = self.chance.choice(found)
        if job_id in self.held:
            self.end(job_id, Event.CANCEL)
        else:
            self.store.cancel(job_id)
        self.wanted_ends.add(job_id)

    def fail(self) -> None:
        """Fail a job for good: the worker has another error than the end of the work."""
        job_id = self.some()
        if job_id is not None:
            self.end(job_id, Event.FAIL)
            self.wanted_ends.add(job_id)

    def time_out(self) -> None:
        """Let an attempt time out; the next one submits anew."""
        job_id = self.some()
        if job_id is None or (work := self.held[job_id][1]) is None:
            return
        job, _ = self.held.pop(job_id)
        end = EndWork([End(job.id, work.number, int(Status.CANCEL))])
        self.store.group(end, self.settle(job, Event.RETRY))
        self.store.wake(NOW)
        self.handed_back.add(work.key)

    def settle(self, job: Job, event: Event) -> Any:
        return ops.Settle([Settlement(self.store.present(job.id), event, 1, due_us=NOW, ended_us=NOW)])

    def end_elsewhere(self) -> None:
        """End a piece of work; the worker that looks at it settles its job, unless it dies before."""
        job_id = self.some()
        if job_id is None or (work := self.held[job_id][1]) is None:
            return
        self.other.works[work.key] = "ended"
        job, _ = self.held[job_id]
        if self.chance.random() < 0.3:
            self.store.group(EndWork([End(job.id, work.number, int(Status.DONE))]))
            self.release(job_id, Event.LOSE)
            return
        del self.held[job_id]
        self.store.group(EndWork([End(job.id, work.number, int(Status.DONE))]), self.settle(job, Event.SUCCEED))

    def look(self) -> None:
        self.store.group(LookAtWork(NOW))
        for job in self.store.claim(b"f.cancel"):
            arguments = json.loads(job.payload)
            key = arguments["key"] if arguments["meta"] is None else arguments["meta"]
            if arguments["meta"] is None:
                self.other.submit(key, self.other.jobs.get(key, -self.keys))
            self.other.cancel(key)
            self.store.end(job)

    # ---- promises ----

    def check(self) -> None:
        """Assert that no work was cancelled whose job goes on with it, and that each attempt has one piece of work."""
        attempts = [job for key, job in self.other.jobs.items() if key not in self.handed_back and job > 0]
        assert len(attempts) == len({*attempts}), "an attempt has submitted twice"
        for key, state in self.other.works.items():
            if state == "cancelled" and key not in self.handed_back:
                job = self.other.jobs[key]
                assert job < 0 or job in self.wanted_ends, f"{key} was cancelled, and its job goes on"

    def settle_down(self) -> None:
        """Let all that is under way end, and assert that nothing is left over."""
        for _ in range(4):
            self.look()
        states = {job.id: State(job.state) for job in self.store.list() if job.function == b"f"}
        by_job: dict[int, list[str]] = {}
        for key, state in self.other.works.items():
            if state == "running":
                by_job.setdefault(self.other.jobs[key], []).append(key)
        for job, keys in by_job.items():
            assert not states[job].ended, f"{keys} run on, and their job has ended"
            assert len(keys) == 1, f"{keys} run for one job"
        self.check()


def simulate(make: Callable[[], Engine], seed: int) -> None:
    store = Store(make)
    try:
        world = World(store, seed)
        for _ in range(STEPS):
            world.step()
        world.settle_down()
    finally:
        store.close()


def in_memory() -> Callable[[], Engine]:
    engine = memory_engine()
    return lambda: engine


@pytest.mark.parametrize("seed", range(60))
def test_work_ends_with_its_job_and_with_nothing_else(seed: int) -> None:
    simulate(in_memory(), seed)


@pytest.mark.parametrize("seed", range(6))
def test_work_ends_with_its_job_in_a_file(seed: int, tmp_path: Path) -> None:
    simulate(lambda: sqlite_engine(tmp_path / "jobs.db"), 1000 + seed)


def is_caught() -> None:
    def all_seeds() -> None:
        for seed in range(60):
            simulate(in_memory(), seed)

    with pytest.raises(AssertionError):
        all_seeds()


def test_a_cancel_on_a_drain_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(work: Work, job: Job | None, canceller: Job | None) -> Verdict:
        if work.status == Status.OPEN and job is not None and not State(job.state).held:
            return Verdict.CANCEL
        return verdict(work, job, canceller)

    verdict = external.verdict
    monkeypatch.setattr(unit, "verdict", hasty)
    monkeypatch.setattr("mainspring.engines.memory.external.verdict", hasty)
    is_caught()


def test_a_repetition_under_another_key_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = unit.WorkUnit._begin

    async def forgetful(self: unit.WorkUnit, operation: BeginWork) -> list[Work]:
        works = await begin(self, operation)
        fresh = {one.job: one.key for one in operation.starting}
        return [work if work.meta else work._replace(key=fresh[work.job]) for work in works]

    monkeypatch.setattr(unit.WorkUnit, "_begin", forgetful)
    is_caught()


def test_work_that_is_kept_at_a_cancel_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(work: Work, job: Job | None, canceller: Job | None) -> Verdict:
        found = verdict(work, job, canceller)
        return Verdict.DELETE if found is Verdict.CANCEL and job is not None and job.state == State.CANCELLED else found

    verdict = external.verdict
    monkeypatch.setattr(unit, "verdict", forgetful)
    is_caught()


def test_work_that_is_submitted_again_after_its_end_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = unit.WorkUnit._begin

    async def forgetful(self: unit.WorkUnit, operation: BeginWork) -> list[Work]:
        jobs = {one.job for one in operation.starting}
        done = [work for work in await self._tables.works(jobs) if work.status == Status.DONE]
        await self._tables.delete([(work.job, work.number) for work in done])
        return await begin(self, operation)

    monkeypatch.setattr(unit.WorkUnit, "_begin", forgetful)
    is_caught()
