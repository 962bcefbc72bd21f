"""Groups of decisions in one statement: only about runs in memory that are stored so, and with the results of all groups."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.suite.events import brief, want
from tests.conformance.suite.flows import Flows

from mainspring.engines.postgres import transaction, warm_runs
from mainspring.engines.postgres.connections import SESSION_SETTINGS
from mainspring.engines.postgres.writer import FastPathBackoff
from mainspring.errors import StoreFencedError
from mainspring.event_log import types
from mainspring.jobs import store as job_ops
from mainspring.workflows import store as ops
from mainspring.workflows.model import Key
from mainspring.workflows.requests import Signal

from .a_fleet import eventually, node, session
from .run_nodes import WAITING, Nodes
from .test_jobs_plans import plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.model import Job


@pytest.fixture
def one(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flows]:
    """Open a node that tries each group in one statement; check all runs afterwards."""
    monkeypatch.setattr(FastPathBackoff, "missed", lambda *_: None)
    monkeypatch.setattr(
        Flows, "run_errands", lambda _: False
    )  # there are none, and groups that look for them are counted
    nodes = Nodes(database, 1)
    try:
        yield nodes.flows[0]
        nodes.flows[0].check()
    finally:
        nodes.close()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of the groups that end step by step."""
    entry, numbers = transaction.journal_entry, list[int]()

    def note(tx: Transaction, number: int) -> str:
        numbers.append(number)
        return entry(tx, number)

    monkeypatch.setattr(transaction, "journal_entry", note)
    return numbers


def begun(one: Flows) -> tuple[int, Job]:
    """Return a run with two activities, of which one is held, and with a decision that has been made."""
    run = one.start()
    one.running(run, one.activity(), one.activity())
    held, *_ = one.store.claim(b"charge", 1)
    return run, held


def counts(one: Flows) -> Counter[Any]:
    return Counter({(key[1], key[2]): number for key, number in one.store.counts().items()})


def story(one: Flows) -> object:
    """Let a run do all that such groups can; return what that has stored, without ids."""
    before = counts(one)
    run, held = begun(one)
    (other,) = one.store.claim(b"charge")
    assert one.group(job_ops.Settle([one.settled(held, b"done")])) == [set()]
    task, seen = one.task(run), one.row(run).events
    assert one.decide(run, task, steps=[one.step(101), one.step(102)], more=True).verdict == "recorded"
    decided = one.decide(run, task, one.activity(), one.timer(5.0), seen=seen)
    assert len(decided.events) == 6
    assert one.fuse(run, other, one.timer(6.0)).verdict == "recorded"
    one.store.claim(b"charge")
    row, after = one.row(run), counts(one)
    after.subtract(before)
    return one.kinds(run), row.events, row.due_us - one.now_us, row.decision, row.about, after


def test_decisions_steps_and_ends_of_activities_are_one_statement_each(one: Flows, steps: list[int]) -> None:
    run, held = begun(one)
    steps.clear()
    assert one.group(job_ops.Settle([one.settled(held, b"done")])) == [set()]
    assert steps == []
    task, seen = one.task(run), one.row(run).events
    steps.clear()
    assert one.decide(run, task, steps=[one.step(101)], more=True).verdict == "recorded"
    assert one.decide(run, task, one.activity(), one.timer(5.0), seen=seen).verdict == "recorded"
    assert steps == []
    assert len(one.store.claim(b"charge")) == 2


def test_an_end_that_somebody_asks_for_is_written_step_by_step_with_its_event(one: Flows, steps: list[int]) -> None:
    _, held = begun(one)
    want(one.store, types.SUCCEEDED, functions=("other",))
    steps.clear()
    assert one.group(job_ops.Settle([one.settled(held, b"done")])) == [set()]
    assert steps == []
    want(one.store, types.SUCCEEDED)
    (held,) = one.store.claim(b"charge")
    steps.clear()
    assert one.group(job_ops.Settle([one.settled(held, b"done")])) == [set()]
    assert len(steps) == 1
    assert brief(one.store) == [(types.SUCCEEDED, held.id)]


def test_they_have_the_results_of_groups_that_run_step_by_step(
    one: Flows, monkeypatch: pytest.MonkeyPatch, steps: list[int]
) -> None:
    begun(one)  # the numbers of the functions are stored now
    one.store.claim(b"charge")
    steps.clear()
    at_once = story(one)
    few = len(steps)
    monkeypatch.setattr(FastPathBackoff, "tries", lambda *_: False)
    steps.clear()
    assert story(one) == at_once
    assert len(steps) == few + 5


def changed(one: Flows, database: str, statement: str, *values: Any) -> None:
    """Change the store as another node would."""

    async def change() -> None:
        async with session(database) as other:
            assert int((await other.execute(statement, *values)).rpartition(" ")[2]) > 0

    one.store.run(change())


def test_a_run_that_another_node_has_written_is_read_again(one: Flows, database: str, steps: list[int]) -> None:
    run, _ = begun(one)
    one.signal(Signal(Key(job=run), "s", b"1"))
    task = one.task(run)
    completion = one.completing(run, task, one.timer(5.0))
    changed(one, database, "UPDATE runs_open SET about = 'changed' WHERE id = $1", run)
    steps.clear()
    _, (decided,) = one.group(job_ops.Settle([one.settled(task)]), ops.Decide([completion], one.now_us))
    assert decided.verdict == "recorded"
    assert len(steps) == 1


def test_a_decision_task_that_is_held_no_more_records_nothing(one: Flows, database: str, steps: list[int]) -> None:
    run, _ = begun(one)
    one.signal(Signal(Key(job=run), "s", b"1"))
    task = one.task(run)
    events = one.row(run).events
    changed(one, database, "UPDATE jobs SET term = term + 1000 WHERE id = $1", task.id)
    steps.clear()
    assert one.decide(run, task, steps=[one.step(101)], more=True).verdict == "stale"
    assert one.decide(run, task, one.timer(5.0)).verdict == "stale"
    assert len(steps) == 2
    assert one.row(run).events == events


def test_the_end_of_an_activity_that_is_held_no_more_is_stale(one: Flows, database: str, steps: list[int]) -> None:
    run, held = begun(one)
    events = one.row(run).events
    changed(one, database, "UPDATE jobs SET term = term + 1000 WHERE id = $1", held.id)
    steps.clear()
    assert one.group(job_ops.Settle([one.settled(held)])) == [{held.id}]
    assert len(steps) == 1
    assert one.row(run).events == events


def test_a_client_that_waits_for_an_activity_is_notified(one: Flows, database: str) -> None:
    _, held = begun(one)
    one.group(job_ops.Subscribe(one.store.term, [held.id]))
    assert one.group(job_ops.Settle([one.settled(held)])) == [set()]

    async def waits() -> int:
        async with session(database) as other:
            number: int = await other.fetchval("SELECT count(*) FROM waits")
            return number

    assert one.store.run(waits()) == 0


def test_a_decision_of_a_node_whose_term_has_ended_is_refused(one: Flows, database: str, steps: list[int]) -> None:
    run, held = begun(one)
    events = one.row(run).events
    group = [job_ops.Settle([one.settled(held)])]
    changed(one, database, "UPDATE terms SET ended = true WHERE term = $1", one.store.term)
    steps.clear()
    with pytest.raises(StoreFencedError):
        one.store.group(*group)
    assert one.row(run).events == events
    assert steps == []


def test_a_lost_answer_is_recovered(one: Flows, monkeypatch: pytest.MonkeyPatch) -> None:
    run, held = begun(one)
    engine: Any = one.store.engine
    writes: Any = engine._writer._connection  # noqa: SLF001 - one of its connections is to be disturbed
    terminate = writes.terminate
    fetch: Any = type(writes).fetchval
    lost = []

    async def lose(self: object, query: str, *values: object) -> object:
        found: object = await fetch(self, query, *values)
        if self is writes and query in {warm_runs.STATEMENT, warm_runs.WITH_JOBS}:
            lost.append(query)
            terminate()
            raise ConnectionResetError("the answer is lost")
        return found

    monkeypatch.setattr(type(writes), "fetchval", lose)
    assert one.group(job_ops.Settle([one.settled(held, b"done")])) == [set()]
    assert len(lost) == 1
    one.running(run, one.timer(5.0))
    assert one.kinds(run).count("ActivityTaskCompleted") == 1


def test_runs_are_locked_before_jobs(one: Flows, database: str, steps: list[int]) -> None:
    run, held = begun(one)
    steps.clear()

    async def test() -> None:
        async with session(database) as other, session(database) as third:
            await other.execute("BEGIN")
            await other.execute("SELECT FROM runs_open WHERE id = $1 FOR UPDATE", run)
            group = asyncio.ensure_future(one.store.committed([job_ops.Settle([one.settled(held)])]))
            await eventually(lambda: third.fetchval(WAITING), "the group waits for the run")
            await other.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE NOWAIT", held.id)
            await other.execute("COMMIT")
            assert await group == [set()]

    one.store.run(test())
    assert steps == []


@pytest.mark.parametrize("vacuumed", [False, True])
def test_the_statement_looks_rows_up_by_their_indexes(database: str, vacuumed: bool) -> None:
    async def test() -> None:
        async with node(database), session(database, **SESSION_SETTINGS) as other:
            if vacuumed:
                await other.execute("VACUUM ANALYZE")
            for step in await plan(other, "with_jobs", {"with_jobs": warm_runs.WITH_JOBS}):
                if step["Node Type"].endswith("Scan") and "Relation Name" in step:
                    assert step["Node Type"] == "Index Scan", step
                    assert step["Index Name"] in {"runs_open_pkey", "jobs_pkey"}

    asyncio.run(test())
