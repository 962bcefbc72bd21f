"""Functions whose jobs stand for runs, with a slice that begins root jobs and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from tests.conformance.ground import Do, InMemory

from mainspring.callbacks import CallInProgress
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.errors import ConflictError, StoreError
from mainspring.jobs.model import RUNS, Job, State
from mainspring.jobs.roots import Stored
from mainspring.jobs.store import Claim, Submit

from .a_node import Client, Node, side, unexpected

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.access.idempotency import KeyedAct
    from mainspring.errors import MainspringError
    from mainspring.jobs.held import Worker
    from mainspring.jobs.roots import Joined
    from mainspring.jobs.slices import RunTransaction
    from mainspring.storage.engine import Operation


class FakeRoots:
    """Begins root jobs; a run ends only if a test says so, or at once with the payload ``fails``."""

    def __init__(self) -> None:
        self.node: Node
        self.cancelled: list[tuple[int, str]] = []
        self.begun: list[bytes] = []
        """The payloads of the root jobs."""
        self.refuses = False
        self.failures = 0
        """How many requests fail."""

    def goes_on(self, job: Job) -> Worker | None:
        return None

    def begin(self, jobs: list[Job], done: Callable[[Joined], None], failed: Callable[[MainspringError], None]) -> None:
        if self.refuses:
            failed(ConflictError("not now"))
            return
        self.node.service.commits.put(self.beginning(jobs)[0], done, failed)

    def beginning(self, jobs: list[Job], act: KeyedAct | None = None) -> tuple[Do, Callable[[Joined], Stored]]:
        refused = {job.id: "not now" for job in jobs if self.refuses}

        async def work(ground: RunTransaction) -> Joined:
            if refused:
                return {}
            joined = await ground.begin_roots(jobs)
            new = [job for job in jobs if job.id not in joined]
            self.begun += [job.payload for job in new]
            ground.after_commit(lambda: ground.lifecycle.begun(new))
            ends = [
                Job(job.id, b"", b"", state=int(State.FAILED), error=b"{}") for job in new if job.payload == b"fails"
            ]
            ended = await ground.end_roots(ends)
            ground.after_commit(lambda: ground.lifecycle.ended(ended))
            return joined

        return Do(work, act), lambda joined: Stored(joined, refused)

    def begin_waiting(
        self, function: bytes, limit: int, done: Callable[[int], None], failed: Callable[[MainspringError], None]
    ) -> None:
        if self.failures:
            self.failures -= 1
            failed(StoreError("the disk"))
            return

        async def work(ground: RunTransaction) -> int:
            taken = await ground.take_pending(function, limit, 1)
            self.begun += [job.payload for job in taken]
            ground.after_commit(lambda: ground.lifecycle.begun((), taken))
            return len(taken)

        self.node.service.commits.put(Do(work), done, failed)

    async def cancel(self, job_id: int, reason: str, act: object = None) -> str:
        del act
        self.cancelled.append((job_id, reason))
        return "running"

    def end(self, job: Job, state: State = State.SUCCEEDED) -> None:
        async def work(ground: RunTransaction) -> None:
            ended = await ground.end_roots([Job(job.id, b"", b"", state=int(state), ended_us=1, result=b"r")])
            ground.after_commit(lambda: ground.lifecycle.ended(ended))

        self.node.service.commits.put(Do(work), lambda _: None, unexpected)
        self.node.commit()


@pytest.fixture
def roots() -> FakeRoots:
    return FakeRoots()


@pytest.fixture
def node(roots: FakeRoots) -> Node:
    node = roots.node = Node(engine=MemoryEngine(slices=[InMemory([])]), roots=roots)
    node.service.workers.became_root(b"f")
    return node


def count(node: Node) -> tuple[list[int], int, int]:
    queue = node.queue()
    return queue.backlog, queue.leased + queue.inflight, queue.away


def is_root(node: Node, job: Job) -> bool:
    stored = node.stored(job.id)
    return (stored.state, stored.term) == (State.RUNNING, RUNS)


# ---- submitting ----


def test_a_submission_begins_a_run_at_once_without_a_worker(node: Node, roots: FakeRoots) -> None:
    job = node.background("1")
    assert is_root(node, job)
    assert node.answers == [job.id]
    assert roots.begun == [b"1"]
    assert count(node) == ([0, 0, 0], 0, 1)


def test_no_worker_has_to_register_the_function(node: Node) -> None:
    assert node.service.registered.has(b"f")
    node.wait(5)
    assert not node.service.registered.has(b"g")


def test_a_worker_that_registers_for_the_function_gets_none_of_its_jobs(node: Node) -> None:
    plain, stream = node.worker(), node.stream(places=9)
    assert not node.assigner.sleep(plain)
    jobs = [node.background("1"), node.background("2", due_us=1, state=int(State.SCHEDULED))]
    node.wait(2)
    assert node.grab(plain) is None
    assert side(plain).pop_events() == ["no job"]
    assert side(stream).pop_events() == []
    assert all(is_root(node, job) for job in jobs)
    assert count(node) == ([0, 0, 0], 0, 2)


def test_a_batch_is_answered_in_its_order_with_what_it_joins(node: Node, roots: FakeRoots) -> None:
    first = node.background("1", unique=b"u")
    node.answers.clear()
    jobs = [node.job("2", unique=b"u"), node.job("3", "g"), node.job("4"), node.job("5", due_us=2**60)]
    node.submit(*jobs)
    node.commit()
    assert node.answers == [first.id, jobs[1].id, jobs[2].id, jobs[3].id]
    assert roots.begun == [b"1", b"4"]
    assert [node.state(job.id) for job in jobs[1:]] == [State.PENDING, State.RUNNING, State.SCHEDULED]
    assert count(node) == ([0, 0, 0], 0, 3)
    assert node.queue("g").backlog == [0, 1, 0]


def test_a_batch_is_refused_if_a_run_cannot_begin(node: Node, roots: FakeRoots) -> None:
    roots.refuses = True
    node.submit(node.job("1"), node.job("2", "g"))
    node.commit()
    (error,) = node.answers
    assert isinstance(error, ConflictError)
    assert count(node) == ([0, 0, 0], 0, 0)


def test_a_foreground_job_outlives_its_client(node: Node, roots: FakeRoots) -> None:
    job = node.job("1")
    assert node.service.foreground.asks_the_store(job)
    client = Client()
    node.service.foreground.submit(job, client, node.answers.append, unexpected)
    node.commit()
    assert node.answers == [job.id]
    assert node.table.held == {}
    second, other = node.foreground("2")
    node.commit()
    node.service.waits.gone(other)
    node.commit()
    roots.end(job)
    roots.end(second)
    assert client.events == ["succeeded r"]
    assert other.events == []
    assert node.state(second.id) is State.SUCCEEDED


def test_a_foreground_job_joins_a_run(node: Node, roots: FakeRoots) -> None:
    job = node.background("1", unique=b"u")
    _, client = node.foreground("2", unique=b"u")
    node.commit()
    assert node.answers == [job.id] * 2
    roots.end(job)
    assert client.events == ["succeeded r"]


def test_a_client_learns_of_a_run_that_ends_as_it_begins(node: Node) -> None:
    _, client = node.foreground("fails")
    node.commit()
    assert client.events == ["failed"]
    assert count(node) == ([0, 0, 0], 0, 0)


# ---- jobs that wait ----


def test_waiting_jobs_begin_when_a_function_becomes_a_workflow(roots: FakeRoots) -> None:
    node = roots.node = Node(engine=MemoryEngine(slices=[InMemory([])]), roots=roots)
    jobs = [node.background(str(number)) for number in range(3)]
    node.service.workers.became_root(b"f")
    node.commit()
    assert roots.begun == [b"0", b"1", b"2"]
    assert all(is_root(node, job) for job in jobs)
    assert count(node) == ([0, 0, 0], 0, 3)


def test_jobs_that_wait_in_memory_begin_too(roots: FakeRoots) -> None:
    node = roots.node = Node(engine=MemoryEngine(slices=[InMemory([])]), roots=roots)
    worker = node.stream()
    running, stored = node.background("1"), node.background("2")
    foreground, client = node.foreground("3")
    assert node.held(stored) is not None
    node.service.workers.became_root(b"f")
    node.commit()
    assert is_root(node, stored)
    assert is_root(node, foreground)
    assert side(worker).pop_events() == ["job 1"]
    assert (node.queue().foreground, node.table.foreground_bytes) == (0, 0)
    roots.end(foreground)
    assert client.events == ["succeeded r"]
    node.settling.released(side(worker).given[0])
    node.commit()
    assert is_root(node, running), "a job that a worker gives back begins as well"


@pytest.mark.parametrize("fails", [False, True])
def test_a_foreground_job_begins_after_it_was_stored(roots: FakeRoots, *, fails: bool) -> None:
    node = roots.node = Node(engine=MemoryEngine(slices=[InMemory([])]), roots=roots)
    job, client = node.foreground("1", unique=b"u")
    node.submit(node.job("2", unique=b"u"))
    node.life.store.full = fails
    node.life.loop.soon.popleft()()
    node.service.workers.became_root(b"f")
    assert node.life.store.busy
    node.life.store.finish()
    node.life.store.full = False
    node.commit()
    assert is_root(node, job)
    assert roots.begun == [b"1"]
    assert count(node) == ([0, 0, 0], 0, 1)
    assert (node.queue().foreground, node.table.foreground_bytes) == (0, 0)
    roots.end(job)
    assert client.events == ["succeeded r"]


def test_a_foreground_job_in_memory_that_cannot_begin_fails(roots: FakeRoots) -> None:
    node = roots.node = Node(engine=MemoryEngine(slices=[InMemory([])]), roots=roots)
    _, client = node.foreground("1")
    roots.refuses = True
    node.service.workers.became_root(b"f")
    node.commit()
    assert client.events == ["failed"]
    (job,) = client.ended_jobs
    assert b"not now" in job.error


def test_pending_jobs_begin_after_a_restart(node: Node, roots: FakeRoots) -> None:
    later = node.background("1", due_us=1_000, state=int(State.SCHEDULED))
    restarted = roots.node = node.restart()
    restarted.wait(2)
    assert restarted.state(later.id) is State.PENDING, "nothing is begun before the workflows are loaded"
    restarted.service.workers.became_root(b"f")
    restarted.commit()
    assert is_root(restarted, later)


def test_a_pass_that_fails_is_repeated(node: Node, roots: FakeRoots) -> None:
    roots.failures = 2
    job = node.background("1", due_us=1_000, state=int(State.SCHEDULED))
    node.wait(0.3)
    assert node.state(job.id) is State.PENDING
    node.wait(0.3)
    assert is_root(node, job)


def test_more_jobs_than_one_pass_takes_begin(roots: FakeRoots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.jobs.roots.RUNS_AT_ONCE", 2)
    node = roots.node = Node(engine=MemoryEngine(slices=[InMemory([])]), roots=roots)
    node.submit(*(node.job(str(number)) for number in range(5)))
    node.commit()
    node.service.workers.became_root(b"f")
    node.commit()
    assert len(roots.begun) == 5


def test_jobs_that_become_pending_during_a_pass_begin(
    node: Node, roots: FakeRoots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two wakes, the second of which is answered while the pass for the first is under way."""
    asked: list[Callable[[int], None]] = []
    begin_waiting = roots.begin_waiting
    monkeypatch.setattr(roots, "begin_waiting", lambda function, limit, done, failed: asked.append(done))
    first = node.background("1", due_us=1_000, state=int(State.SCHEDULED))
    node.wait(1)
    second = node.background("2", due_us=1_000, state=int(State.SCHEDULED))
    node.wait(1)
    assert len(asked) == 1
    monkeypatch.setattr(roots, "begin_waiting", begin_waiting)
    asked[0](0)
    node.commit()
    assert is_root(node, first)
    assert is_root(node, second)


def test_no_claim_is_made(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[Operation] = []
    commit = node.life.store.commit

    def recorded(group: Sequence[Operation], *callbacks: Any) -> None:
        groups.extend(group)
        commit(group, *callbacks)

    monkeypatch.setattr(node.life.store, "commit", recorded)
    node.stream(places=5)
    node.background("1", due_us=1_000, state=int(State.SCHEDULED))
    node.wait(2)
    assert any(isinstance(operation, Do) for operation in groups)
    assert not any(isinstance(operation, Claim) for operation in groups)


def test_a_job_that_a_slice_makes_is_not_leased_to_a_worker(node: Node) -> None:
    node.stream(places=5)
    job = node.job("1")
    assert node.service.lifecycle.reserve(job, node.table.term)
    assert (State(job.state), job.term) == (State.PENDING, 0)
    node.service.commits.put(Submit([job]), lambda _: node.service.lifecycle.stored([job]), unexpected)
    node.commit()
    assert is_root(node, job)


def test_a_function_that_was_dropped_remains_a_workflow(node: Node) -> None:
    node.service.dispatch.forget(b"f")
    job = node.background("1", due_us=1_000, state=int(State.SCHEDULED))
    node.wait(1)
    assert is_root(node, job)


def test_a_node_that_drains_begins_no_waiting_jobs(node: Node, roots: FakeRoots) -> None:
    node.service.hand_back()
    job = node.background("1", due_us=1_000, state=int(State.SCHEDULED))
    node.wait(1)
    assert node.state(job.id) is State.PENDING
    node.service.resume()
    node.commit()
    assert is_root(node, job)
    assert roots.begun == [b"1"]


# ---- pauses and the length of the queue ----


def pause(node: Node, *, paused: bool) -> None:
    CallInProgress(
        node.service.functions.change(b"f", lambda row, _: replace(row, paused=paused)), lambda _: None, unexpected
    )
    node.commit()


def test_no_run_of_a_paused_function_begins(node: Node, roots: FakeRoots) -> None:
    before = node.background("0")
    pause(node, paused=True)
    jobs = [node.background("1"), node.background("2", due_us=1_000, state=int(State.SCHEDULED))]
    foreground, client = node.foreground("3")
    node.wait(2)
    assert [node.state(job.id) for job in (*jobs, foreground)] == [State.PENDING] * 3
    assert is_root(node, before)
    assert count(node) == ([0, 3, 0], 0, 1)
    pause(node, paused=False)
    assert roots.begun == [b"0", b"1", b"2", b"3"]
    assert count(node) == ([0, 0, 0], 0, 4)
    roots.end(foreground)
    assert client.events == ["succeeded r"]


def test_a_function_that_becomes_a_workflow_while_it_is_paused(roots: FakeRoots) -> None:
    node = roots.node = Node(engine=MemoryEngine(slices=[InMemory([])]), roots=roots)
    stored = node.background("1")
    pause(node, paused=True)
    foreground, client = node.foreground("2")
    node.service.workers.became_root(b"f")
    node.commit()
    assert (roots.begun, node.table.held) == ([], {})
    pause(node, paused=False)
    assert is_root(node, stored)
    assert is_root(node, foreground)
    roots.end(foreground)
    assert client.events == ["succeeded r"]


def test_a_pause_ends_the_passes_over_waiting_jobs(
    node: Node, roots: FakeRoots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.jobs.roots.RUNS_AT_ONCE", 2)
    pause(node, paused=True)
    for number in range(5):
        node.background(str(number))
    CallInProgress(
        node.service.functions.change(b"f", lambda row, _: replace(row, paused=False)), lambda _: None, unexpected
    )
    CallInProgress(
        node.service.functions.change(b"f", lambda row, _: replace(row, paused=True)), lambda _: None, unexpected
    )
    node.commit()
    assert len(roots.begun) < 5
    pause(node, paused=False)
    assert roots.begun == [b"0", b"1", b"2", b"3", b"4"]


def test_the_length_of_a_queue_includes_its_open_runs(node: Node, roots: FakeRoots) -> None:
    node.service.dispatch.limit_queue(b"f", (2, 2, 2))
    job = node.background("1")
    assert not node.queue().is_full(job.priority)
    node.background("2", due_us=2**60, state=int(State.SCHEDULED))
    assert node.queue().is_full(job.priority)
    roots.end(job)
    assert not node.queue().is_full(job.priority)


# ---- cancelling and retrying ----


def test_a_cancel_is_the_runs_own(node: Node, roots: FakeRoots) -> None:
    job = node.background("1")
    answers = node.cancel(job.id)
    node.commit()
    assert answers == ["running"]
    assert roots.cancelled == [(job.id, "asked")]


def test_a_replaced_run_of_a_schedule_is_cancelled_so_too(node: Node, roots: FakeRoots) -> None:
    job = node.background("1")
    node.service.lifecycle.cancel([job.id], "replaced")
    node.commit()
    assert roots.cancelled == [(job.id, "replaced")]


def test_a_node_without_workflows_refuses_to_cancel_a_run(node: Node) -> None:
    job = node.background("1")
    without = node.restart(roots=None)
    answers = without.cancel(job.id)
    without.commit()
    (error,) = answers
    assert isinstance(error, ConflictError)
    assert "cancel it at a node that runs workflows" in str(error)


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED])
def test_a_run_is_not_retried(node: Node, roots: FakeRoots, state: State) -> None:
    job = node.background("1")
    roots.end(job, state)
    answers: Sequence[object] = node.retry(job.id)
    node.commit()
    (error,) = answers
    assert isinstance(error, ConflictError)
    assert "mainspring workflows start f" in str(error)
    assert node.state(job.id) is state
