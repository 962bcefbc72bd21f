"""A node that shares its store with others: what its clients leave behind when they go, and what it counts."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from tests.shared_memory import SharedMemoryEngine, SharedTables

from mainspring.errors import StoreError, StoreUnavailableError
from mainspring.events import Abandoned
from mainspring.jobs import function_limits, sharing
from mainspring.jobs.maintenance import TICK_INTERVAL
from mainspring.jobs.model import Job, Options, Retry, failure
from mainspring.jobs.store import SIGNS_LAST, Backlog, ReadBacklog, Signs, Withdrawn
from mainspring.resources.rules import Limits
from mainspring.resources.store import ListLimits
from mainspring.storage import commit_queue
from mainspring.testing import ManualClock

from .a_node import Node, side
from .test_functions import limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.jobs.held import Worker
    from mainspring.storage.engine import Answer, Answered, Budget, Committed, Operation, Query


@pytest.fixture
def node() -> Node:
    """Give one of several nodes of a store; the others are silent."""
    engine = SharedMemoryEngine(SharedTables(ManualClock().wall))
    return Node(engine=engine)


def send(node: Node) -> None:
    """Let a group be on its way to the store, and no more."""
    node.life.commits.hurry()
    while not node.life.store.busy:
        node.life.loop.soon.popleft()()


def test_a_foreground_job_that_is_dropped_while_it_is_handed_out_gives_its_token_back(node: Node) -> None:
    """Two leave it, one after the other. The store fails over the first, so that it waits until the second is processed."""
    limit(node, Limits(concurrency=1))
    plain, streaming = node.worker(), node.stream(places=1)
    node.background("before")
    node.settling.succeeded(node.given(streaming), b"")  # the function's token is here now
    node.commit()
    node.assigner.sleep(plain)
    job, first = node.foreground("left", unique=b"u")
    node.commit()
    node.background("next")
    node.life.store.full = True
    node.service.waits.gone(first)
    send(node)
    node.service.waits.gone(node.wait_for(job.id))
    node.life.store.finish()
    held = node.grab(plain)
    assert held is not None
    assert held.job.id == job.id
    node.service.workers.ready(streaming, 1)
    node.life.store.full = False
    node.commit()
    assert node.held(job) is None, "it is dropped"
    assert side(streaming).pop_events() == ["job before", "job next"]


def test_a_foreground_job_that_is_left_while_it_is_claimed_is_not_handed_out(node: Node) -> None:
    job, client = node.foreground("left")
    node.commit()
    worker = node.worker()
    node.grab(worker)
    send(node)
    node.service.waits.gone(client)
    node.commit()
    assert side(worker).pop_events() == ["no job"]
    assert node.held(job) is None
    assert node.queue().total() == 0


def test_a_job_that_is_left_here_while_it_is_claimed_is_handed_out_where_others_wait(nodes: list[Node]) -> None:
    here, there = nodes
    job, client = here.foreground("awaited", unique=b"u")
    here.commit()
    there.foreground("awaited", unique=b"u")
    there.commit()
    worker = here.worker()
    here.grab(worker)
    send(here)
    here.service.waits.gone(client)
    here.commit()
    held = here.grab(worker)
    assert held is not None
    assert held.job.id == job.id


def left_running(node: Node, **fields: Any) -> tuple[Job, Worker]:
    """Return a stored foreground job that runs, and its worker; its client has left."""
    job, client = node.foreground("left", **fields)
    node.commit()
    worker = node.worker()
    assert node.given(worker).job.id == job.id
    node.service.waits.gone(client)
    node.commit()
    assert node.held(job) is not None, "a running job goes on"
    return job, worker


@pytest.mark.parametrize("full", [False, True], ids=["", "with a full group"])
def test_a_foreground_job_that_nobody_waits_for_is_dropped_with_its_worker(
    node: Node, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    job, worker = left_running(node)
    other = node.worker()
    if full:  # as if the group had no place for more than the settlement
        monkeypatch.setattr(commit_queue, "GROUP_ROWS", 2)
        node.submit(node.job(function="g"))
    node.service.workers.gone(worker)
    node.grab(other)
    node.commit()
    assert side(other).pop_events() == ["no job"]
    assert node.life.store.find(job.id) is None
    assert (node.queue().total(), node.queue().backlog) == (0, [0, 0, 0])


def test_it_is_dropped_although_the_store_refuses_at_first(node: Node) -> None:
    job, worker = left_running(node)
    node.service.workers.gone(worker)
    node.fail()
    node.wait(1)
    assert node.life.store.find(job.id) is None
    assert node.queue().total() == 0


@pytest.mark.parametrize("end", ["released", "snoozed", "failed"])
def test_it_is_dropped_however_it_goes_back(node: Node, end: str) -> None:
    job, _ = left_running(node, options=Options(retry=Retry(max_attempts=3)))
    held = node.held(job)
    assert held is not None
    if end == "released":
        node.settling.released(held)
    elif end == "snoozed":
        node.settling.snoozed(held, 5)
    else:
        node.settling.failed(held, failure("Oops", "once"))
    node.commit()
    assert node.life.store.find(job.id) is None
    assert node.queue().total() == 0


def test_it_goes_to_another_worker_where_a_client_waits_at_another_node(nodes: list[Node]) -> None:
    here, there = nodes
    job, client = here.foreground("left", unique=b"u")
    here.commit()
    there.foreground("left", unique=b"u")
    there.commit()
    worker = here.worker()
    assert here.given(worker).job.id == job.id
    here.service.waits.gone(client)
    other = here.worker()
    here.service.workers.gone(worker)
    here.commit()
    assert here.given(other).job.id == job.id


def test_what_ended_terms_have_left_is_given_back_when_the_engine_says_so() -> None:
    content = SharedTables(ManualClock().wall)
    here = Node(engine=SharedMemoryEngine(content))
    there = Node(here, engine=SharedMemoryEngine(content))
    job = here.background()
    assert here.given(here.worker()).job.id == job.id
    (gone, lives) = content.terms
    content.ended.add(gone)
    content.tell(lives, Abandoned([gone]))
    there.commit()
    assert there.given(there.worker()).job.id == job.id


# ---- what is counted


@pytest.fixture
def nodes() -> list[Node]:
    """Give two nodes of a store. Each receives the messages of the other."""
    content = SharedTables(ManualClock().wall)
    first = Node(engine=SharedMemoryEngine(content))
    return [first, Node(first, engine=SharedMemoryEngine(content))]


@pytest.mark.parametrize("number", [1, 2, 3, 5, 8])
def test_of_idle_nodes_one_reads_the_backlog_each_second(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A submission in a transaction of a user waits for that: no message announces it."""
    content = SharedTables(ManualClock().wall)
    nodes = [first := Node(engine=SharedMemoryEngine(content))]
    nodes += [Node(first, engine=SharedMemoryEngine(content)) for _ in range(number - 1)]
    clock, seconds = first.clock, 60
    read: list[tuple[float, int]] = []

    def put(queue: commit_queue.CommitQueue, operation: Operation, *callbacks: Any) -> None:
        if isinstance(operation, ReadBacklog):
            read.append((clock.monotonic(), next(n for n, one in enumerate(nodes) if one.life.commits is queue)))
        original(queue, operation, *callbacks)

    original = commit_queue.CommitQueue.put
    monkeypatch.setattr(commit_queue.CommitQueue, "put", put)
    for place, node in enumerate(nodes):
        look(node)  # nothing waits: it is idle
        assert node.service.sharing is not None
        node.service.sharing.set_place(place, number)
    read.clear()
    begin = clock.monotonic()
    for _ in range(round(seconds / TICK_INTERVAL)):
        clock.advance(TICK_INTERVAL)
        for node in nodes:
            node.life.run_due()
            node.commit()
    times = [begin, *(at for at, _ in read), clock.monotonic()]
    assert max(later - earlier for earlier, later in pairwise(times)) <= sharing.BACKLOG_INTERVAL + TICK_INTERVAL
    assert len(read) <= seconds / sharing.BACKLOG_INTERVAL * max(number / sharing.IDLE_INTERVALS, 1) + number
    by_node = [sum(reader == node for _, reader in read) for node in range(number)]
    assert max(by_node) - min(by_node) <= 1
    assert sharing.BACKLOG_INTERVAL * sharing.IDLE_INTERVALS + 2 * TICK_INTERVAL < SIGNS_LAST, (
        "the next signs come in time"
    )


def look(node: Node) -> None:
    """Let a node look into the store."""
    assert node.service.sharing is not None
    node.service.sharing.look()
    node.commit()


def totals(node: Node) -> tuple[int, int]:
    """Return what ``status`` says of the function: how many jobs there are, and how many run."""
    return node.queue().total(), node.queue().running


def test_jobs_that_this_node_never_counted_are_not_subtracted_when_they_end(nodes: list[Node]) -> None:
    here, there = nodes
    look(there)
    worker = there.stream(places=3)
    for _ in range(3):
        here.background()
        there.commit()
    assert totals(there) == (3, 3), "it counts at least what it holds"
    for held in side(worker).given:
        there.settling.succeeded(held, b"")
    assert totals(there) == (3, 0), "their ends are not in the store yet"
    there.commit()
    assert totals(there) == (0, 0)


def test_jobs_of_other_nodes_that_end_without_having_been_counted_are_not_subtracted(nodes: list[Node]) -> None:
    here, there = nodes
    look(there)
    job = here.background()
    there.cancel(job.id)
    there.commit()
    assert totals(there) == (0, 0)


def test_a_look_counts_what_is_on_its_way_to_the_store(node: Node) -> None:
    """The answer does not have it: it was asked for before."""
    assert node.service.sharing is not None
    node.service.sharing.look()
    send(node)
    node.submit(node.job(), node.job(), node.job(due_us=10**17))
    node.life.store.finish()
    assert (node.queue().total(), node.queue().backlog) == (3, [0, 2, 0])
    node.fail()
    assert (node.queue().total(), node.queue().backlog) == (0, [0, 0, 0])


def test_a_look_does_not_count_twice_what_its_group_has_done(node: Node) -> None:
    """The answer of a reading includes later operations of its group, which are answered after it."""
    worker = node.stream(places=2)
    node.background()
    assert totals(node) == (1, 1)
    assert node.service.sharing is not None
    node.service.sharing.look()
    node.submit(node.job())
    node.settling.succeeded(side(worker).given[0], b"")
    node.commit()
    assert totals(node) == (1, 1)


def test_a_claim_that_finds_less_than_it_asked_for_leaves_what_came_too_late_for_it(node: Node) -> None:
    worker = node.worker()
    node.service.assigner.claiming.hint(node.queue())
    assert not node.queue().claiming, "nobody waits for a job"
    node.grab(worker)
    send(node)
    node.background("late")
    assert side(worker).pop_events() == ["job late"]


def test_a_worker_that_asks_after_a_job_was_acknowledged_gets_it(node: Node) -> None:
    """A look that was under way when the job came says that there is none."""
    worker = node.worker()
    assert node.service.sharing is not None
    node.service.sharing.look()
    send(node)
    job = node.background("here")
    assert node.answers == [job.id]
    node.grab(worker)
    node.commit()
    assert side(worker).pop_events() == ["job here"]


def test_jobs_in_flight_do_not_cause_an_early_no_job(node: Node) -> None:
    """They take the places of the window and are not in the store yet: it is not known whether it will take them."""
    node.background("here")
    worker = node.worker()
    node.queue().window = 2
    node.submit(node.job("first", priority=0), node.job("second", priority=0))
    assert node.queue().inflight == 2
    send(node)
    node.grab(worker)
    assert side(worker).pop_events() == [], "the store is asked first"
    node.commit()
    assert side(worker).pop_events() == ["job first"]


def test_counts_that_are_old_are_read_again_before_they_are_shown(nodes: list[Node]) -> None:
    here, there = nodes
    look(there)
    here.background()
    shown: list[int] = []

    def show() -> None:
        there.service.counted(lambda: shown.append(there.queue().total()))
        there.commit()

    show()
    assert shown == [0], "they are not a second old"
    there.clock.advance(sharing.COUNTS_MAX_AGE + 0.01)
    show()
    assert shown == [0, 1]
    there.clock.advance(sharing.COUNTS_MAX_AGE + 0.01)
    there.life.store.full = True
    there.service.counted(lambda: shown.append(there.queue().total()))
    send(there)
    assert shown == [0, 1]
    there.clock.advance(sharing.COUNTS_TIMEOUT)
    there.service.tick()
    assert shown == [0, 1, 1], "the store does not answer"
    there.life.store.full = False
    there.commit()
    assert shown == [0, 1, 1]


@pytest.mark.parametrize("is_deleted", [True, False])
def test_the_worker_at_another_node_is_asked_to_stop_a_job_of_a_run(nodes: list[Node], *, is_deleted: bool) -> None:
    """A run that closes deletes the jobs of its activities; one that cancels an activity asks for its end."""
    here, there = nodes
    there.background("activity")
    there.commit()
    worker = there.stream()
    held = there.given(worker)
    side(worker).pop_events()
    job = there.stored(held.job.id)
    assert job.term not in {0, here.service.term}
    if is_deleted:
        here.service.lifecycle.withdrawn([Withdrawn(job.id, job.term, job.state, job.function, job.priority)])
    else:
        here.service.lifecycle.stop([job.id], "cancelled")
    here.commit()
    there.commit()
    assert side(worker).pop_events() == ["stop activity: cancelled"]
    assert held.cancelled


class SigningEngine(SharedMemoryEngine):
    """A store with signs, which counts the reads of limits and may fail one."""

    reads = 0
    fails = False
    signs: Signs | None = Signs(0, errands=False, signals=False)

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        def with_signs(outcomes: Sequence[Any] | StoreError) -> None:
            assert not isinstance(outcomes, StoreError)
            committed([one._replace(signs=self.signs) if isinstance(one, Backlog) else one for one in outcomes])

        super().commit(group, with_signs, answer)

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        self.reads += isinstance(query, ListLimits)
        if self.fails:
            self.fails = False
            answered(StoreUnavailableError("away"))
        else:
            super().read(query, budget, answered)


def test_limits_are_read_when_a_sign_tells_that_they_have_changed() -> None:
    content = SharedTables(ManualClock().wall)
    engine = SigningEngine(content)
    here = Node(engine=engine)
    there = Node(here, engine=SharedMemoryEngine(content))

    def reads(seconds: float) -> int:
        before = engine.reads
        here.wait(seconds)
        return engine.reads - before

    here.wait(5)
    assert reads(30) == 0
    limit(there, Limits(concurrency=3))
    engine.signs, engine.fails = Signs(1, errands=False, signals=False), True
    assert reads(2 * sharing.BACKLOG_INTERVAL) == 2, "the first one has failed"
    assert here.service.functions.limits(b"f") == Limits(concurrency=3)
    assert reads(30) == 0
    engine.signs = None
    assert reads(30) >= 30 / function_limits.READ_INTERVAL - 2


def test_times_are_read_with_the_backlog_while_nothing_is_due() -> None:
    """Otherwise the parts read them, more exactly."""
    node = Node(engine=SigningEngine(SharedTables(ManualClock().wall)))
    asked: list[bool] = []
    read: list[Signs] = []
    waits = True

    put = node.life.commits.put

    def noting(operation: Operation, *callbacks: Any) -> None:
        if isinstance(operation, ReadBacklog):
            asked.append(operation.times)
        put(operation, *callbacks)

    assert node.service.sharing is not None
    node.service.sharing.add_reader(read.append, lambda: waits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.life.commits, "put", noting)
        look(node)
        waits = False
        node.background("waits")
        look(node)
    assert asked[0] is True
    assert asked[-1] is False
    assert read == [SigningEngine.signs] * len(asked)
