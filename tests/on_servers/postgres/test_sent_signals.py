"""Signals that users send in transactions of their own reach runs once, in their order, or are refused with a reason."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from msgspec.structs import replace
from tests.conformance.suite.paging import answer

from mainspring.event_log import types
from mainspring.event_log.interests import Interest
from mainspring.event_log.store import SaveInterests, StoredInterest
from mainspring.jobs import store as job_ops
from mainspring.jobs.model import Options, encode_options
from mainspring.resources.rules import FunctionLimits, Limits
from mainspring.resources.store import SaveLimits
from mainspring.schedules import store as schedule_ops
from mainspring.schedules.model import Every, Schedule
from mainspring.workflows import sent_signals
from mainspring.workflows import store as ops
from mainspring.workflows.client_signals import signal_runs
from mainspring.workflows.history import WorkflowExecutionSignaled, WorkflowExecutionStarted
from mainspring.workflows.model import Definition, Key, Status
from mainspring.workflows.store import DeliverSignals, FindSentSignals, ReadHistory, ShowRun

from .a_fleet import NOW, Part, eventually, node, session

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from .a_fleet import Node

SIGNAL = "SELECT signal($1, $2, $3)"


@pytest.fixture(autouse=True)
def _runs_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("begun", "ended"):
        monkeypatch.setattr(Part, name, lambda *_: None)


async def begin(one: Node, unique: bytes = b"order-1") -> int:
    """Start a run; return its id."""
    await one.group(ops.SaveDefinitions([Definition("order", "1")], NOW))
    job = one.job(b"order", unique=unique)
    assert await one.group(ops.BeginRuns([ops.Start(job)], NOW)) == [ops.Begun({}, {})]
    return job.id


async def sent(one: Node, *aside: int) -> ops.SentSignals:
    found = await answer(one.engine, FindSentSignals(aside))
    assert isinstance(found, ops.SentSignals)
    return found


async def deliver(one: Node, found: ops.SentSignals | None = None) -> dict[int, str]:
    found = found or await sent(one)
    (delivered,) = await one.group(DeliverSignals(found.signals, NOW))
    assert isinstance(delivered, ops.Delivered)
    assert not delivered.awaited
    return dict(delivered.unread)


async def signals(one: Node, run: int) -> list[tuple[str, bytes]]:
    """Return the signals in the history of a run."""
    page: Any = await answer(one.engine, ReadHistory(run=run))
    return [(event.name, event.input) for event in page.items if isinstance(event, WorkflowExecutionSignaled)]


async def refused(other: Connection[Record]) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in await other.fetch("SELECT run, reason FROM refused_signals ORDER BY number")]


def test_signals_reach_the_run_in_their_order_after_the_commit(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other, session(database) as reader:
            run = await begin(one)
            async with other.transaction():
                await other.execute(SIGNAL, "order-1", "paid", b"1")
                await other.execute(SIGNAL, f"H:n1:{run}", "paid", b"2")
                assert (await sent(one)).signals == []
            rolled_back = other.transaction()
            await rolled_back.start()
            await other.execute(SIGNAL, "order-1", "never", b"")
            await rolled_back.rollback()
            await other.execute(SIGNAL, f"H:n1:{run}@{run}", "paid", b"3")
            assert await deliver(one) == {}
            assert await signals(one, run) == [("paid", b"1"), ("paid", b"2"), ("paid", b"3")]
            assert await reader.fetchval("SELECT count(*) FROM sent_signals") == 0
            assert (await sent(one)).signals == []
            assert await refused(reader) == []

    asyncio.run(test())


def test_a_signal_reaches_its_run_once_whatever_nodes_and_how_often_they_deliver(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, node(database, "n2") as two, session(database) as other:
            run = await begin(one)
            for number in range(20):
                await other.execute(SIGNAL, "order-1", "s", b"%d" % number)
            found = await sent(one)
            assert [*await asyncio.gather(deliver(one, found), deliver(two, found))] == [{}, {}]
            await deliver(two, found)
            assert await signals(one, run) == [("s", b"%d" % number) for number in range(20)]
            await other.execute(SIGNAL, "order-1", "s", b"20")
            fresh = await sent(one)
            for signals_of, elsewhere in ((fresh.signals, False), (fresh.signals, True)):
                (delivered,) = await two.group(DeliverSignals([*signals_of], NOW))
                assert delivered == ops.Delivered({}, {}, elsewhere)

    asyncio.run(test())


def test_nodes_that_deliver_at_once_do_so_one_after_the_other(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other, session(database) as rival:
            run = await begin(one)
            await other.execute(SIGNAL, "order-1", "s", b"1")
            found = await sent(one)
            async with rival.transaction():  # another node passes it on, and has not committed yet
                await rival.execute(
                    "DELETE FROM sent_signals WHERE number IN (SELECT number FROM sent_signals FOR UPDATE)"
                )
                delivering = asyncio.ensure_future(deliver(one, found))

                async def waits() -> bool:
                    return bool(await other.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"))

                await eventually(waits, "the group waits for the other node")
            await delivering
            assert await signals(one, run) == []

    asyncio.run(test())


def test_a_group_that_fails_keeps_its_signals(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other, session(database) as locker:
            run = await begin(one)
            await other.execute(SIGNAL, "order-1", "s", b"1")
            async with locker.transaction():
                await locker.execute("SELECT FROM runs_open FOR UPDATE")
                delivering = asyncio.ensure_future(deliver(one))

                async def waits() -> bool:
                    return bool(await other.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"))

                await eventually(waits, "the group waits for the run")
                await other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mainspring:n1 groups'"
                )
            await delivering  # the node repeats it
            assert await signals(one, run) == [("s", b"1")]
            assert await other.fetchval("SELECT count(*) FROM sent_signals") == 0

    asyncio.run(test())


def test_a_request_is_taken_once(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            run = await begin(one)
            for _ in range(2):
                await other.execute("SELECT signal('order-1', 'paid', '7', request => 'payment-1')")
                await deliver(one)
            assert await signals(one, run) == [("paid", b"7")]
            assert await refused(other) == []

    asyncio.run(test())


def test_signals_that_reach_no_run_are_refused_with_the_reason(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            run = await begin(one, b"closed")
            await one.group(ops.TerminateRun(Key(run=run), "", NOW))
            await begin(one)
            await other.execute("SELECT signal('order-1', 'paid', namespace => 'team')")
            for key in ("nobody", "closed", "H:n1:999"):
                await other.execute(SIGNAL, key, "paid", b"")
            last = await begin(one, b"last")
            await other.execute(SIGNAL, "last", "paid", b"")
            assert await deliver(one) == {}
            assert await refused(other) == [
                ("order-1", "there is no run order-1 in the namespace team"),
                ("nobody", "there is no run nobody in the namespace default"),
                ("closed", "the run closed is closed (terminated)"),
                ("H:n1:999", "there is no run H:n1:999 in the namespace default"),
            ]
            assert await signals(one, last) == [("paid", b"")], "the others go on"
            found = await sent(one)
            assert (found.refused, found.reason) == (4, "there is no run H:n1:999 in the namespace default")
            await other.execute("DELETE FROM refused_signals")
            assert (await sent(one)).refused == 0

    asyncio.run(test())


def test_a_signal_to_a_run_that_this_version_cannot_read_stays(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            run = await begin(one)
            await other.execute("UPDATE runs SET parking = '\\xc1'")
            last = await begin(one, b"last")
            await other.execute(SIGNAL, f"H:n1:{run}", "paid", b"1")
            await other.execute(SIGNAL, "last", "paid", b"2")
            unread = await deliver(one)
            assert len(unread) == 1
            assert await signals(one, last) == [("paid", b"2")]
            assert [one.input for one in (await sent(one)).signals] == [b"1"]
            await other.execute(SIGNAL, f"H:n1:{run}", "paid", b"3")
            assert (await sent(one, *unread)).signals == [], "none overtakes another"
            assert await refused(other) == []
            await other.execute("UPDATE runs SET parking = NULL")
            assert await deliver(one) == {}
            assert await signals(one, run) == [("paid", b"1"), ("paid", b"3")]

    asyncio.run(test())


def test_a_portion_has_a_limit_in_bytes(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_signals, "MOST_BYTES", 100)

    async def test() -> None:
        async with node(database) as one, session(database) as other:
            for size in (500, 40, 40, 40):
                await other.execute(SIGNAL, "order-1", "s", b"x" * size)
            assert [len(signal.input) for signal in (await sent(one)).signals] == [500]
            await other.execute("DELETE FROM sent_signals WHERE length(input) = 500")
            assert [len(signal.input) for signal in (await sent(one)).signals] == [40, 40]

    asyncio.run(test())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("'', 's'", "a run has a handle"),
        (f"'{'x' * 129}', 's'", "a run has a handle"),
        ("NULL, 's'", "a run has a handle"),
        ("'order-1', ''", "the name of a signal has 1 to 256"),
        ("'order-1', NULL", "the name of a signal has 1 to 256"),
        (f"'order-1', 's', '', '{'x' * 257}'", "a request has up to 256"),
        ("'order-1', 's', namespace => 'No'", "is no namespace"),
        ("'order-1', 's', namespace => NULL", "is no namespace"),
    ],
)
def test_wrong_arguments_are_refused_at_once(database: str, arguments: str, words: str) -> None:
    async def test() -> None:
        async with session(database) as other:
            with pytest.raises(asyncpg.DataError, match=words):
                await other.execute(f"SELECT signal({arguments})")

    asyncio.run(test())


# ---- starts ----


def test_a_submission_of_a_workflow_begins_its_run_on_any_node(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, node(database, "n2") as two, session(database) as other:
            await begin(one)
            options = encode_options(Options(timeout=60.0, version="2"))
            async with other.transaction():
                handle = await other.fetchval("SELECT submit('order', '[5]', 'order-2', options => $1)", options)
                await other.execute(SIGNAL, handle, "paid", b"1")
            assert handle == "H:inbox:1"
            await two.group(job_ops.DrainInbox())
            assert await two.group(ops.BeginWaiting(b"order", 10, NOW)) == [1]
            await other.execute(SIGNAL, "order-2", "paid", b"2")
            await deliver(one)
            shown: Any = await answer(one.engine, ShowRun(Key(job=1)))
            assert (shown.row.workflow_id, shown.row.version, shown.row.status) == ("order-2", "2", Status.OPEN)
            page: Any = await answer(one.engine, ReadHistory(run=1))
            started = page.items[0]
            assert isinstance(started, WorkflowExecutionStarted)
            assert (started.input, started.execution_timeout) == (b"[5]", 60.0)
            assert await signals(one, 1) == [("paid", b"1"), ("paid", b"2")]

    asyncio.run(test())


def test_a_signal_of_the_same_transaction_begins_the_run_out_of_the_inbox(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await begin(one)
            async with other.transaction():
                handle = await other.fetchval("SELECT submit('order', '[5]')")
                await other.execute(SIGNAL, handle, "paid", b"1")
            await deliver(one)
            assert await signals(one, 1) == [("paid", b"1")]
            assert await other.fetchval("SELECT count(*) FROM inbox") == 0

    asyncio.run(test())


def test_a_signal_waits_for_a_start_that_was_committed_before_it(database: str) -> None:
    """Also behind a closed run of the same workflow id, and as long as other starts that were there then are no jobs."""

    async def test() -> None:
        async with node(database) as one, node(database, "n2") as two, session(database) as other:
            closed = await begin(one, b"order-2")
            await one.group(ops.TerminateRun(Key(run=closed), "", NOW))
            async with other.transaction():
                await other.fetchval("SELECT submit('order', '[5]', 'order-2')")
                await other.execute(SIGNAL, "order-2", "paid", b"1")
            await other.execute(SIGNAL, "order-2", "paid", b"2")
            await other.execute(SIGNAL, "nobody", "paid", b"3")
            found = await sent(one)
            (delivered,) = await one.group(DeliverSignals(found.signals, NOW))
            assert delivered == ops.Delivered({}, {one.number: 1 for one in found.signals})
            await other.fetchval("SELECT submit('order', '[6]', 'later')")
            assert len((await sent(one)).signals) == 3
            await two.group(job_ops.DrainInbox(1))
            (delivered,) = await one.group(DeliverSignals(found.signals, NOW, delivered.awaited))
            assert delivered == ops.Delivered({}, {}), "those that are later are not awaited"
            assert await signals(one, 1) == [("paid", b"1"), ("paid", b"2")]
            assert await refused(other) == [("nobody", "there is no run nobody in the namespace default")]

    asyncio.run(test())


def test_no_signal_overtakes_one_that_waits(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run of two signals begins after the group has looked for that of the first one: the group begins anew."""
    attempts = 0

    async def test() -> None:
        async with node(database) as one, node(database, "n2") as two, session(database) as other:
            await begin(one)
            async with other.transaction():
                await other.fetchval("SELECT submit('order', '[5]', 'order-2')")
                for value in (b"1", b"2"):
                    await other.execute(SIGNAL, "order-2", "paid", value)

            async def late(changes: Any, operation: ops.SignalRuns) -> Any:
                nonlocal attempts
                attempts += 1
                if attempts > 1:
                    return await signal_runs(changes, operation)
                first, second = operation.signals
                missed = await signal_runs(changes, ops.SignalRuns([first], NOW))
                await two.group(job_ops.DrainInbox())
                return missed + await signal_runs(changes, ops.SignalRuns([second], NOW))

            monkeypatch.setattr(sent_signals, "signal_runs", late)
            await deliver(one)
            assert attempts == 2
            assert await signals(one, 1) == [("paid", b"1"), ("paid", b"2")]

    asyncio.run(test())


def test_the_handle_of_a_submission_that_has_joined_a_run_reaches_that_run(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            run = await begin(one)
            async with other.transaction():
                handle = await other.fetchval("SELECT submit('order', '[5]', 'order-1')")
                await other.execute(SIGNAL, "order-1", "paid", b"1")
            await one.group(job_ops.DrainInbox())
            await other.execute(SIGNAL, handle, "paid", b"2")
            await deliver(one)
            assert await signals(one, run) == [("paid", b"1"), ("paid", b"2")]
            assert await refused(other) == []

    asyncio.run(test())


# ---- signs


async def signs(one: Node, *, times: bool = True) -> job_ops.Signs:
    (backlog,) = await one.group(job_ops.ReadBacklog(times=times))
    assert isinstance(backlog, job_ops.Backlog)
    assert backlog.signs is not None
    return backlog.signs


def test_a_reading_of_the_backlog_has_signs_of_what_other_parts_have_to_do(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as user:
            nothing = job_ops.Signs(0, errands=False, signals=False, alarm_us=0, fire_us=0, deadline_us=0)
            assert await signs(one) == nothing
            assert await signs(one, times=False) == nothing._replace(alarm_us=None, fire_us=None, deadline_us=None)
            await begin(one)
            before = await signs(one)
            assert before.alarm_us, "its timeout"
            assert before == nothing._replace(alarm_us=before.alarm_us)

            await user.execute(SIGNAL, "order-1", "approved", b"")
            assert await signs(one) == before._replace(signals=True)
            await deliver(one)
            assert await signs(one) == before

            await user.execute("INSERT INTO errands (errand) VALUES ('')")
            assert await signs(one) == before._replace(errands=True)
            await user.execute("DELETE FROM errands")

            put = schedule_ops.Change(
                "put", "nightly", 0, Schedule(name="nightly", function=b"f", trigger=Every(60 * 1_000_000))
            )
            await one.group(schedule_ops.SaveSchedules([put], NOW))
            with_fire = await signs(one)
            assert NOW < (with_fire.fire_us or 0) <= NOW + 60_000_000
            assert with_fire == before._replace(fire_us=with_fire.fire_us)

            await one.group(SaveInterests(NOW, [StoredInterest("reader", Interest(frozenset({types.FAILED})))]))
            before = await signs(one)
            assert before == with_fire._replace(interests=1)

            for number in (3, 2):
                await user.execute("INSERT INTO deadlines VALUES ($1, 1, '', $2)", number, number * 10)
                assert await signs(one) == before._replace(deadline_us=number * 10)

            found = set()
            limits = [FunctionLimits(name, commanded=Limits(concurrency=2)) for name in (b"f", b"g")]
            for version in range(3):
                for one_limit in limits:
                    await one.group(SaveLimits(replace(one_limit, version=version)))
                    found.add((await signs(one)).limits)
            await one.group(SaveLimits(limits[0]))  # of another node, too late: it changes nothing
            assert len(found) == 6
            assert (await signs(one)).limits == max(found)

    asyncio.run(test())
