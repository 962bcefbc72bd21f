"""The jobs of a node on a memory store, with workers and clients that record the calls they receive."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, cast

from tests.simulation.life import Life
from tests.simulation.store import History

from mainspring.callbacks import CallInProgress
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.jobs.function_index import nobody
from mainspring.jobs.held import Ability, Held, Worker
from mainspring.jobs.model import Job, State
from mainspring.jobs.sharing import Shared
from mainspring.testing import ManualClock

if TYPE_CHECKING:
    from mainspring.errors import MainspringError
    from mainspring.events import Relay
    from mainspring.jobs.held import FunctionQueue
    from mainspring.storage.engine import Engine


class Side:
    """The connection of a worker: records its calls."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.events: list[str] = []
        self.given: list[Held] = []

    def wake(self) -> None:
        self.events.append("wake")

    def assign(self, held: Held) -> None:
        self.events.append(f"job {held.job.payload.decode()}")
        self.given.append(held)

    def no_job(self) -> None:
        self.events.append("no job")

    def name(self) -> str:
        return self._name

    def stop(self, held: Held, reason: bytes) -> None:
        self.events.append(f"stop {held.job.payload.decode()}: {reason.decode()}")

    def pop_events(self) -> list[str]:
        """Return and clear the recorded events."""
        events, self.events = self.events, []
        return events


class Client:
    """A client that waits for jobs and records their events."""

    def __init__(self) -> None:
        self.gone = False
        self.room = True
        self.events: list[str] = []
        self.ended_jobs: list[Job] = []

    def data(self, handle: bytes, data: bytes) -> None:
        self.events.append(f"data {data.decode()}")

    def warning(self, handle: bytes, data: bytes) -> None:
        self.events.append(f"warning {data.decode()}")

    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None:
        self.events.append(f"{numerator.decode()} of {denominator.decode()}")

    def unknown(self, handle: bytes) -> None:
        self.events.append("unknown")

    def has_room(self) -> bool:
        return self.room

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        output = job.result if job.state == State.SUCCEEDED else exception or b""
        self.events.append(f"{State(job.state).name.lower()} {output.decode()}".strip())
        self.ended_jobs.append(job)


class Node:
    """One node. Time and commits pass when the test says so."""

    def __init__(self, earlier: Node | None = None, *, engine: Engine | None = None, **options: Any) -> None:
        """``earlier`` is a node whose store and clock it has; with an engine of its own, that node goes on beside it."""
        self.engine: Engine = engine or (earlier.engine if earlier else MemoryEngine())
        self.clock: ManualClock = earlier.clock if earlier else ManualClock()
        self.history: History = earlier.history if earlier else History()
        self._options = options
        if self.engine.shared:
            options["shared"] = Shared(cast("Relay", self.engine), lambda: True, nobody)
        self.life = Life(self.engine, self.history, self.clock, Random(0), **options)
        self.service = self.life.service
        self.table = self.service.table
        self.assigner = self.service.assigner
        self.settling = self.service.settling
        self.answers: list[object] = []
        """Ids and errors, in the order of the answers."""

    def restart(self, **options: Any) -> Node:
        """Return the next life of the node, after a crash of this one."""
        return Node(self, **(options or self._options))

    # ---- time and the store ----

    def commit(self) -> None:
        """Let everything reach the disk that is on its way there, and what follows from that."""
        self.life.settle()
        while not self.life.commits.idle:
            self.life.commits.hurry()
            self.life.settle()

    def fail(self) -> None:
        """Let the group fail that is on its way to the disk."""
        self.life.store.full = True
        self.life.commits.hurry()
        self.life.settle()
        self.life.store.full = False

    def wait(self, seconds: float) -> None:
        """Let time pass, as the node wants it."""
        end = self.clock.monotonic() + seconds
        while True:
            self.commit()
            following = self.life.next()
            if following > end:
                break
            self.clock.advance(max(following - self.clock.monotonic(), 0))
            self.life.run_due()
        self.clock.advance(max(end - self.clock.monotonic(), 0))
        self.commit()

    # ---- clients ----

    def job(self, payload: str = "", function: str = "f", **fields: Any) -> Job:
        job = Job(self.service.table.next_id(), function.encode(), payload.encode(), **fields)
        job.created_us = round(self.clock.wall() * 1_000_000)
        return job

    def submit(self, *jobs: Job) -> list[Job]:
        """Send background jobs to the store as one batch; nothing is committed yet."""
        self.service.intake.submit(list(jobs), lambda ids, _: self.answers.extend(ids), self.answers.append)
        return list(jobs)

    def background(self, payload: str = "", function: str = "f", **fields: Any) -> Job:
        """Submit one background job and commit it."""
        job = self.job(payload, function, **fields)
        self.submit(job)
        self.commit()
        return job

    def foreground(
        self, payload: str = "", function: str = "f", *, client: Client | None = None, **fields: Any
    ) -> tuple[Job, Client]:
        """Submit one foreground job."""
        client = client or Client()
        job = self.job(payload, function, **fields)
        self.service.foreground.submit(job, client, self.answers.append, self.answers.append)
        return job, client

    def wait_for(self, job_id: int) -> Client:
        """Wait for a job as a client of the extension does."""
        client = Client()
        self.service.waits.wait(job_id, client, lambda: client.events.append("unknown"))
        return client

    def cancel(self, job_id: int) -> list[object]:
        """Cancel a job; what is answered goes to the list."""
        answers: list[object] = []
        CallInProgress(self.service.clients.cancel(job_id, "asked"), answers.append, answers.append)
        return answers

    def retry(self, job_id: int) -> list[Job | MainspringError]:
        answers: list[Job | MainspringError] = []
        CallInProgress(self.service.clients.retry(job_id), answers.append, answers.append)
        return answers

    # ---- workers ----

    def worker(self, *functions: str, name: str = "w", **ability: Any) -> Worker:
        worker = Worker(Side(name))
        for function in functions or ("f",):
            self.service.workers.register(worker, function.encode(), Ability(**ability))
        return worker

    def stream(self, *functions: str, places: int = 1, **ability: Any) -> Worker:
        ability = {"requeue": False} | ability
        worker = self.worker(*functions, **ability)
        self.service.workers.ready(worker, places)
        return worker

    def grab(self, worker: Worker) -> Held | None:
        """Ask for a job as the Gearman face does; without lingering."""
        held = self.assigner.grab(worker)
        if held is None and not self.assigner.pending_grabs.for_the_store(worker):
            worker.connection.no_job()
        return held

    def given(self, worker: Worker) -> Held:
        """The job that a worker was given; it is asked for where it does not come by itself."""
        if not worker.streams:
            held = self.grab(worker)
            if held is not None:
                return held
        self.commit()
        return side(worker).given[-1]

    # ---- looking ----

    def stored(self, job_id: int) -> Job:
        job = self.life.store.find(job_id)
        assert job is not None, "the store does not know it"
        return job

    def state(self, job_id: int) -> State:
        return State(self.stored(job_id).state)

    def queue(self, function: str = "f") -> FunctionQueue:
        return self.service.dispatch.queue(function.encode())

    def held(self, job: Job) -> Held | None:
        return self.table.find(job.id)


def side(worker: Worker) -> Side:
    assert isinstance(worker.connection, Side)
    return worker.connection


def unexpected(error: object) -> None:
    """For what must not fail."""
    raise AssertionError(error)
