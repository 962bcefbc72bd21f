"""Operations on many jobs at a node in memory."""

from __future__ import annotations

from copy import copy
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.jobs.a_node import Client, Node, side, unexpected

from mainspring.access.caller import LOCAL, Caller, Grant, Role
from mainspring.bulk import service
from mainspring.bulk.rules import Action, BulkOperation, Outcome, Spec, Status
from mainspring.bulk.service import FIND_INTERVAL, BulkService
from mainspring.bulk.service import BulkNode as Services
from mainspring.bulk.store import ListTouched, ShowBulk, StepBackfill, StepBulk
from mainspring.callbacks import CallInProgress
from mainspring.engines.memory.bulk import MemoryBulk, MemoryBulkSlice
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.memory.schedules import MemoryScheduleSlice
from mainspring.jobs.model import Job, State
from mainspring.queries import JobFilter, QueryJobs
from mainspring.storage.engine import Page

FAILED = JobFilter(states=(State.FAILED,))


class BulkNode(Node):
    """A node with operations on many jobs."""

    def __init__(self, earlier: Node | None = None, **options: Any) -> None:
        engine = None if earlier else MemoryEngine([MemoryBulkSlice(), MemoryScheduleSlice()])
        super().__init__(earlier, engine=engine, **options)
        self.caller: Caller | None = LOCAL
        self.paused = False
        service = self.service
        services = Services(
            self.life.commits,
            self.life.reads,
            self.clock,
            service.stored_changes,
            service.later,
            service.clients.cancel,
            self.current,
        )
        self.bulk = BulkService(services, service.table.next_id, lambda: service.term, lambda: self.paused)

    async def current(self, _: Caller) -> Caller | None:
        """Return the caller of all operations as the test has set it."""
        return self.caller

    def lose_steps(self, chance: Random) -> None:
        """Let some steps be committed without an outcome for the node, which repeats it after a second."""
        self.life.store.loses = lambda group: (
            all(isinstance(operation, StepBulk | StepBackfill) for operation in group) and chance.random() < 0.4
        )

    def failed(self, number: int, **fields: Any) -> list[Job]:
        """Return dead letters."""
        worker = self.worker("f", "g")
        jobs = []
        for _ in range(number):
            job = self.background(**fields)
            self.settling.failed(self.given(worker), b'{"type":"E","message":"m"}', final=True)
            self.commit()
            jobs.append(job)
        self.service.workers.gone(worker)
        return jobs

    def begin(
        self,
        action: Action = Action.RETRY,
        where: JobFilter | None = FAILED,
        *,
        namespace: str = "default",
        **spec: Any,
    ) -> BulkOperation:
        begun: list[BulkOperation] = []
        new = self.bulk.new(namespace, Spec(action=action, where=where, **spec))
        CallInProgress(self.bulk.begin(new), begun.append, unexpected)
        while not begun:
            self.life.commits.hurry()
            self.life.settle()
        return begun[0]

    def ask(self, query: Any) -> Any:
        answers: list[Any] = []
        self.life.reads.ask(query, answers.append, unexpected)
        self.commit()
        return answers[0]

    def shown(self, bulk: BulkOperation) -> BulkOperation:
        shown = self.ask(ShowBulk("default", bulk.id))
        assert isinstance(shown, BulkOperation)
        return shown

    def touched(self, bulk: BulkOperation) -> list[int]:
        page: Page[dict[Outcome, list[int]]] = self.ask(ListTouched(id=bulk.id, limit=1000))
        return [job_id for step in page.items for ids in step.values() for job_id in ids]

    def states(self, jobs: list[Job]) -> list[State]:
        return [self.state(job.id) for job in jobs]


@pytest.fixture
def node() -> BulkNode:
    return BulkNode()


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "STEPS", service.STEPS._replace(first=2))
    monkeypatch.setattr(service, "READ_AHEAD", 5)


async def near(self: MemoryBulk, where: JobFilter, after: int, limit: int) -> Page[Job] | None:
    """Read ahead, as a step on SQLite does."""
    found = [job for job_id, job in sorted(self._tables.jobs.items())[::-1] if job_id < after and where.matches(job)]
    page = [copy(job) for job in found[:limit]]
    return Page(page, page[-1].id) if len(page) == limit else None


def test_a_step_reads_for_the_next_one(node: BulkNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryBulk, "near", near)
    monkeypatch.setattr(service, "AHEAD", 5)
    monkeypatch.setattr(
        service, "STEPS", service.STEPS._replace(smallest=2, largest=2)
    )  # whatever the steps' real time
    jobs = node.failed(23)
    asked: list[object] = []
    ask = node.life.reads.ask

    def note(query: Any, *more: Any) -> None:
        asked.append(query)
        ask(query, *more)

    monkeypatch.setattr(node.life.reads, "ask", note)
    bulk = node.begin()
    node.wait(5)
    assert node.shown(bulk).progress.counts == {Outcome.RETRIED: 23}
    assert node.states(jobs) == [State.PENDING] * 23
    assert sum(isinstance(query, QueryJobs) for query in asked) == 2, "the first jobs, and the rest"


def test_steps_go_with_other_work_and_wait_for_none(node: BulkNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.failed(8)
    steps: list[StepBulk] = []
    put = node.life.commits.put

    def note(operation: Any, *more: Any) -> None:
        steps.extend([operation] if isinstance(operation, StepBulk) else ())
        put(operation, *more)

    monkeypatch.setattr(node.life.commits, "put", note)
    node.begin(rate=2)
    node.wait(1.5)
    assert [step.urgent for step in steps] == [False, True]
    node.background(function="g")
    node.wait(1)
    assert not steps[2].urgent


def test_dead_letters_are_retried_and_served(node: BulkNode) -> None:
    jobs = node.failed(12)
    others = node.failed(1, function="g")
    bulk = node.begin(where=JobFilter(states=(State.FAILED,), function=b"f"))
    worker = node.stream(places=100)
    node.wait(5)
    shown = node.shown(bulk)
    assert (shown.status, shown.progress.counts) == (Status.DONE, {Outcome.RETRIED: 12})
    assert sorted(node.touched(bulk)) == [job.id for job in jobs]
    assert sorted(held.job.id for held in side(worker).given) == [job.id for job in jobs]
    assert node.states(others) == [State.FAILED]


def test_jobs_by_handle_have_their_turns(node: BulkNode) -> None:
    jobs = node.failed(7)
    ids = tuple(job.id for job in jobs[::-1])
    bulk = node.begin(where=None, ids=(*ids, 77))
    node.wait(5)
    shown = node.shown(bulk)
    assert (shown.status, shown.progress.counts) == (Status.DONE, {Outcome.RETRIED: 7, Outcome.NOT_FOUND: 1})
    assert sorted(node.touched(bulk)) == sorted([*ids, 77])


def test_waiting_and_running_jobs_are_cancelled(node: BulkNode) -> None:
    worker = node.stream()
    jobs = [node.background(str(number)) for number in range(4)]
    client = node.wait_for(jobs[3].id)
    bulk = node.begin(Action.CANCEL, JobFilter(function=b"f"), reason="no more")
    node.wait(5)
    shown = node.shown(bulk)
    assert (shown.status, shown.progress.counts) == (Status.DONE, {Outcome.CANCELLED: 3, Outcome.STOPPING: 1})
    assert side(worker).events == ["job 0", "stop 0: cancelled"]
    assert node.states(jobs[1:]) == [State.CANCELLED] * 3
    assert client.events == ["cancelled"]
    assert sum(node.queue().backlog) == 0


def test_jobs_of_other_namespaces_stay_as_they_are(node: BulkNode) -> None:
    worker = node.stream("team\x1ff", places=1)
    running, waiting = (node.background(str(number), function="team\x1ff") for number in range(2))
    other = node.background("2")
    ids = (running.id, waiting.id, other.id)
    bulk = node.begin(Action.CANCEL, None, ids=ids, namespace="team")
    node.wait(5)
    shown = node.ask(ShowBulk("team", bulk.id))
    assert shown.progress.counts == {Outcome.CANCELLED: 1, Outcome.STOPPING: 1, Outcome.NOT_FOUND: 1}
    assert side(worker).events == ["job 0", "stop 0: cancelled"]
    assert node.state(other.id) is State.PENDING
    bulk = node.begin(Action.CANCEL, JobFilter(states=(State.PENDING,), namespace="team"), namespace="team")
    node.wait(5)
    assert node.ask(ShowBulk("team", bulk.id)).progress.counts == {}
    assert node.state(other.id) is State.PENDING


def test_ended_jobs_are_deleted(node: BulkNode) -> None:
    jobs = node.failed(7)
    waiting = node.background()
    bulk = node.begin(Action.DELETE, JobFilter(function=b"f"))
    node.wait(5)
    assert node.shown(bulk).progress.counts == {Outcome.DELETED: 7}
    assert [node.life.store.find(job.id) for job in jobs] == [None] * 7
    assert node.state(waiting.id) is State.PENDING


def test_waiting_jobs_run_at_another_time(node: BulkNode) -> None:
    jobs = [node.background(str(number)) for number in range(3)]
    due_us = round((node.clock.wall() + 60) * 1_000_000)
    bulk = node.begin(Action.RESCHEDULE, JobFilter(function=b"f"), due_us=due_us)
    node.wait(5)
    assert node.shown(bulk).progress.counts == {Outcome.RESCHEDULED: 3}
    assert node.states(jobs) == [State.SCHEDULED] * 3
    worker = node.stream(places=3)
    node.wait(50)
    assert side(worker).given == []
    node.wait(10)
    assert len(side(worker).given) == 3
    assert node.queue().away == sum(node.queue().backlog) == 0


def test_scheduled_jobs_run_at_once(node: BulkNode) -> None:
    job = node.background(state=State.SCHEDULED, due_us=round((node.clock.wall() + 60) * 1_000_000))
    worker = node.stream()
    node.begin(Action.RESCHEDULE, JobFilter(function=b"f"), due_us=1)
    node.wait(1)
    assert [held.job.id for held in side(worker).given] == [job.id]


def test_an_operation_goes_on_after_a_crash_and_touches_each_job_once(node: BulkNode) -> None:
    jobs = node.failed(30)
    bulk = node.begin(rate=20)
    node.wait(0.5)
    assert 0 < len(node.touched(bulk)) < 30
    assert node.shown(bulk).status is Status.RUNNING
    following = BulkNode(node)
    following.bulk.tick()
    following.wait(5)
    shown = following.shown(bulk)
    assert (shown.status, shown.progress.counts) == (Status.DONE, {Outcome.RETRIED: 30})
    touched = following.touched(bulk)
    assert sorted(touched) == [job.id for job in jobs], "each once"
    assert shown.term == following.service.term


def test_jobs_that_match_again_have_no_second_turn_after_a_crash(node: BulkNode) -> None:
    jobs = node.failed(30)
    bulk = node.begin(where=JobFilter(states=(State.FAILED, State.CANCELLED)), rate=20)
    node.wait(0.5)
    retried = node.touched(bulk)
    for job_id in retried:
        assert node.cancel(job_id) == []
    node.commit()
    assert 0 < len(retried) < 30
    following = BulkNode(node)
    following.bulk.tick()
    following.wait(5)
    assert following.shown(bulk).progress.counts == {Outcome.RETRIED: 30}
    states = {job.id: following.state(job.id) for job in jobs}
    assert [state for job_id, state in states.items() if job_id in retried] == [State.CANCELLED] * len(retried)


@pytest.mark.parametrize("seed", range(8))
def test_crashes_at_random_moments_give_each_job_one_turn(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Random(seed)
    if seed % 2:
        monkeypatch.setattr(MemoryBulk, "near", near)
        monkeypatch.setattr(service, "AHEAD", 5)
    node = BulkNode()
    node.lose_steps(chance)
    jobs = node.failed(30)
    bulk = node.begin(where=JobFilter(states=(State.FAILED, State.CANCELLED)), rate=chance.choice([None, 20, 100]))
    crashes = 0
    while node.shown(bulk).status is Status.RUNNING:
        for _ in range(chance.randrange(200)):  # a crash may lose the group under way
            if node.life.loop.soon:
                node.life.loop.soon.popleft()()
            elif node.life.store.busy and chance.random() < 0.5:
                node.life.store.finish()
            else:
                node.life.commits.hurry()
                node.clock.advance(0.001)
                node.life.run_due()
                node.bulk.tick()
        if crashes < 8 and chance.random() < 0.6:
            crashes += 1
            node = BulkNode(node)
            node.lose_steps(chance)
        for job_id in node.touched(bulk):
            node.cancel(job_id)  # it matches again
        node.commit()
        node.bulk.tick()
        node.wait(chance.choice([0.05, 0.1, 1.2]))
    shown = node.shown(bulk)
    assert (shown.status, shown.progress.counts) == (Status.DONE, {Outcome.RETRIED: 30})
    assert sorted(node.touched(bulk)) == [job.id for job in jobs]


def test_workers_are_asked_to_stop_after_a_crash(node: BulkNode, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = node.stream()
    job = node.background("0")
    asked: list[int] = []
    monkeypatch.setattr(service.BulkRun, "_stop_jobs", lambda self: asked.extend(self.bulk.progress.stopping))
    bulk = node.begin(Action.CANCEL, JobFilter(function=b"f"))
    while not asked:
        node.life.commits.hurry()
        node.life.settle()
    assert side(worker).events == ["job 0"], "the node crashes before it asks"
    monkeypatch.undo()
    assert node.shown(bulk).progress.stopping == (job.id,)
    following = BulkNode(node)
    following.bulk.tick()
    following.wait(5)
    assert following.state(job.id) is State.CANCELLED
    assert following.shown(bulk).status is Status.DONE


def test_a_unique_that_a_foreground_job_has_is_a_failure(node: BulkNode) -> None:
    (job,) = node.failed(1, unique=b"u")
    node.foreground(unique=b"u", client=Client())
    bulk = node.begin()
    node.wait(5)
    (failure,) = node.shown(bulk).progress.failures
    assert (failure.job, failure.outcome) == (job.id, Outcome.CONFLICT)
    assert "its unique is live again as H:n:" in failure.message


def test_an_abort_ends_it_between_two_steps(node: BulkNode) -> None:
    jobs = node.failed(30)
    bulk = node.begin(rate=2)
    node.wait(1.5)
    aborted: list[BulkOperation | None] = []
    CallInProgress(node.bulk.abort("default", bulk.id, "enough"), aborted.append, unexpected)
    node.wait(60)
    assert aborted[0] is not None
    assert (aborted[0].status, aborted[0].progress.why) == (Status.ABORTED, "enough")
    assert node.shown(bulk) == aborted[0]
    assert 0 < node.states(jobs).count(State.PENDING) < 6


def test_a_rate_spreads_the_jobs(node: BulkNode) -> None:
    jobs = node.failed(20)
    bulk = node.begin(rate=4)
    node.wait(2.4)
    assert 8 <= node.states(jobs).count(State.PENDING) <= 12
    node.wait(5)
    assert node.shown(bulk).status is Status.DONE


def test_a_caller_without_rights_stops_it(node: BulkNode) -> None:
    jobs = node.failed(10)
    caller = Caller("ann", (Grant(Role.OPERATOR),), token="t")
    node.caller = caller
    bulk = node.begin(rate=2, caller=caller)
    node.wait(1.5)
    node.caller = None
    node.wait(10)
    shown = node.shown(bulk)
    assert (shown.status, shown.progress.why) == (Status.STOPPED, "the token of 'ann' has ended")
    assert 0 < node.states(jobs).count(State.PENDING) < 10


def test_a_caller_with_a_weaker_role_stops_it(node: BulkNode) -> None:
    jobs = node.failed(2)
    node.caller = Caller("ann", (Grant(Role.VIEWER),), token="t")
    bulk = node.begin(caller=node.caller)
    node.wait(1)
    assert "'ann' lacks the permission 'operate'" in node.shown(bulk).progress.why
    assert node.states(jobs) == [State.FAILED] * 2


def test_a_caller_changes_only_jobs_of_its_functions(node: BulkNode) -> None:
    (mine,) = node.failed(1, function="g")
    (other,) = node.failed(1)
    node.caller = Caller("ann", (Grant(Role.OPERATOR, functions=("g*",)),), token="t")
    bulk = node.begin(caller=node.caller)
    node.wait(1)
    shown = node.shown(bulk)
    assert shown.progress.counts == {Outcome.RETRIED: 1, Outcome.FORBIDDEN: 1}
    assert node.states([mine, other]) == [State.PENDING, State.FAILED]


def test_a_node_without_a_lease_takes_no_step(node: BulkNode) -> None:
    jobs = node.failed(10)
    bulk = node.begin(rate=2)
    node.wait(1.5)
    node.paused = True
    node.bulk.fenced()
    node.wait(10)
    pending = node.states(jobs).count(State.PENDING)
    assert pending < 10
    node.paused = False
    node.bulk.tick()
    node.wait(10)
    assert node.shown(bulk).status is Status.DONE
    assert node.states(jobs) == [State.PENDING] * 10


def test_a_store_that_refuses_is_asked_later(node: BulkNode) -> None:
    node.failed(3)
    node.life.store.full = True
    refused: list[object] = []
    new = node.bulk.new("default", Spec(action=Action.RETRY, where=FAILED))
    CallInProgress(node.bulk.begin(new), unexpected, refused.append)
    node.commit()
    assert refused
    node.life.store.full = False
    bulk = node.begin()
    node.life.store.full = True
    node.wait(3)
    assert node.shown(bulk).status is Status.RUNNING
    node.life.store.full = False
    node.wait(3)
    assert node.shown(bulk).progress.counts == {Outcome.RETRIED: 3}
    assert node.queue().away == 0


def test_several_operations_take_turns(node: BulkNode) -> None:
    node.failed(10)
    node.failed(10, function="g")
    bulks = [node.begin(where=JobFilter(states=(State.FAILED,), function=name)) for name in (b"f", b"g")]
    node.wait(5)
    assert [node.shown(bulk).progress.counts for bulk in bulks] == [{Outcome.RETRIED: 10}] * 2


def test_ended_operations_are_deleted_after_their_retention(node: BulkNode) -> None:
    bulk = node.begin()
    node.wait(1)
    assert node.shown(bulk).status is Status.DONE
    node.clock.advance(15 * 86_400)
    node.bulk.tick()
    node.commit()
    assert node.ask(ShowBulk("default", bulk.id)) is None


def test_an_operation_that_cannot_be_read_is_named_until_it_can(node: BulkNode) -> None:
    jobs = node.failed(4)
    unread = node.begin(rate=1.0)
    node.wait(1.5)
    assert isinstance(node.engine, MemoryEngine)
    operations = node.engine.tables.operations
    written = operations[unread.id]
    assert written.status is Status.RUNNING
    operations[unread.id] = replace(written, unread="of a newer version", spec=Spec(action=Action.CANCEL))
    other = node.begin(Action.DELETE, None, ids=(jobs[0].id,))
    node.wait(5)
    assert node.shown(other).status is Status.DONE
    for _ in range(3):
        node.bulk.tick()
        node.wait(FIND_INTERVAL)
    (entry,) = node.bulk._set_aside.entries()  # noqa: SLF001 - the node's own, as no test has asked for another
    assert (entry.kind, entry.name, entry.fault) == ("operation", f"op-{unread.id}", "of a newer version")
    assert operations[unread.id].progress == written.progress, "nothing is done without its request"
    operations[unread.id] = written
    node.bulk.tick()
    node.wait(FIND_INTERVAL)
    assert node.bulk._set_aside.is_empty  # noqa: SLF001 - as above
    assert node.shown(unread).status is Status.DONE
