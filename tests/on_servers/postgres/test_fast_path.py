"""Groups in one statement: only in the typical case, and with the same results as groups that run step by step."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.postgres.server import name_of

from mainspring.engines.postgres import transaction
from mainspring.engines.postgres.migrate import MIGRATIONS
from mainspring.engines.postgres.transaction import JOBS_SQL
from mainspring.engines.postgres.writer import BACKOFF, FastPathBackoff
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, Priority, State

from .a_fleet import Node, eventually, node, session

if TYPE_CHECKING:
    from tests.postgres.server import PostgresServer

    from mainspring.engines.postgres.transaction import Transaction


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of the groups that end step by step."""
    entry, numbers = transaction.journal_entry, list[int]()

    def note(tx: Transaction, number: int) -> str:
        numbers.append(number)
        return entry(tx, number)

    monkeypatch.setattr(transaction, "journal_entry", note)
    return numbers


async def register(one: Node) -> None:
    """Store a first job: new functions without a number cannot take the fast path."""
    await one.submitted()


async def mixed(one: Node) -> tuple[list[object], list[Job], list[Job]]:
    """Settle some jobs and submit others in one group; returns its outcomes and both."""
    old = await one.submitted(3, state=State.LEASED)
    leased = [one.job(state=State.LEASED, unique=b"u%d" % number) for number in (2, 1)]
    new = [*leased, one.job(), one.job(priority=int(Priority.HIGH), unique=b"u3")]
    outcomes = await one.group(one.submit(*new[:2]), one.settle(*old[:2]), one.settle(old[2]), one.submit(*new[2:]))
    return outcomes, old, new


async def whole(database: str, one: Node) -> object:
    """Return the rows of all jobs, without values that differ between runs."""
    async with session(database) as other:
        jobs = await other.fetch("SELECT state, term > 0, priority, uniq, payload FROM jobs ORDER BY place")
        ended = await other.fetch(
            "SELECT attempt, term > 0, result, output_size, ended_us, started_us FROM ended ORDER BY id"
        )
    return [tuple(row) for row in jobs], [tuple(row) for row in ended], await one.counts()


def test_a_typical_group_is_one_statement(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with node(database) as one:
            await register(one)
            with monkeypatch.context() as patch:
                patch.setattr(transaction, "journal_entry", lambda *_: "SELECT 'step by step' / 0")
                outcomes, old, new = await mixed(one)
            assert outcomes == [{}, set(), set(), {}]
            assert await one.states(*old, *new) == [State.SUCCEEDED] * 3 + [State.LEASED] * 2 + [State.PENDING] * 2
            assert (await one.find(old[0].id))[old[0].id].result == b"r"
            high = await one.group(one.claim(1))
            assert [job.id for (jobs,) in high for job in jobs] == [new[3].id]

    asyncio.run(test())


def test_the_fast_path_has_the_results_of_the_steps(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> object:
        async with node(database) as one:
            await register(one)
            await mixed(one)
            found = await whole(database, one)
        async with session(database) as other:
            await other.execute("TRUNCATE jobs, ended, journal, counts")
        return found

    at_once = asyncio.run(run())
    monkeypatch.setattr(FastPathBackoff, "tries", lambda *_: False)
    steps = asyncio.run(run())
    assert at_once == steps


SLOW_KINDS = ["joined", "joined in the group", "stale", "another's", "twice", "waited", "new function"]


def test_the_fast_path_consists_of_the_statements_of_the_steps() -> None:
    """They are written twice: a function that had them as arguments would plan them anew each time.

    Where one of them is to change, a new migration makes a function of a new name, for nodes of the new version.
    """

    def plain(statement: str) -> str:
        return re.sub(r"\$\d+(::\w+\[\])?", "$", " ".join(statement.split()))

    (whole,) = (plain(one.text) for one in MIGRATIONS if "CREATE FUNCTION usual_2(" in one.text)
    settled, _, _ = plain(JOBS_SQL["succeed"]).removeprefix("WITH ").partition(" SELECT count(*), array_agg")
    columns, _, rest = plain(JOBS_SQL["submit_unique"]).removesuffix(" RETURNING id").partition(" FROM ( SELECT")
    assert settled.endswith("FROM gone )")
    assert columns.endswith("s.keep")
    for part in (settled, columns, rest.partition("unnest(")[2].partition(" AS s (")[2]):
        assert part
        assert part in whole


def errors(postgres: PostgresServer, database: str) -> list[str]:
    """Return the lines of the server's log about errors in a database.

    A node that has closed is none: on a busy machine the server may notice it in the middle of a check.
    """
    found = re.findall(rf"^.* {name_of(database)} (?:ERROR|FATAL|PANIC): .*$", postgres.log(), re.MULTILINE)
    return [line for line in found if "connection to client lost" not in line]


@pytest.mark.parametrize("kind", SLOW_KINDS)
def test_a_refused_group_has_the_outcomes_of_the_steps(postgres: PostgresServer, database: str, kind: str) -> None:
    async def test() -> None:
        async with node(database) as one:
            await register(one)
            live, waited = await one.submitted(2, state=State.LEASED)
            (named,) = await one.submitted(unique=b"u")
            new = one.job(unique=b"u")
            match kind:
                case "joined":
                    (joined, nothing) = await one.group(one.submit(new), one.settle(live))
                    assert (joined[new.id].id, nothing) == (named.id, set())
                case "joined in the group":
                    both = [one.job(unique=b"v"), one.job(unique=b"v")]
                    (joined, _) = await one.group(one.submit(*both), one.settle(live))
                    assert joined[both[1].id].id == both[0].id
                case "stale":
                    assert await one.group(one.settle(named, live)) == [{named.id}]
                case "another's":
                    taken = one.job(state=State.LEASED)
                    taken.id, taken.term = waited.id, one.term + 1
                    assert await one.group(one.settle(taken, live)) == [{waited.id}]
                    assert await one.states(waited) == [State.LEASED]
                case "twice":
                    assert await one.group(one.settle(live), one.settle(live)) == [set(), {live.id}]
                case "waited":
                    await one.group(ops.Subscribe(one.term, [waited.id]))
                    assert await one.group(one.settle(waited, live)) == [set()]
                    async with session(database) as other:
                        assert await other.fetchval("SELECT count(*) FROM waits") == 0
                case _:
                    assert await one.group(one.submit(one.job(b"g")), one.settle(live)) == [{}, set()]
                    assert (await one.counts())[b"g", State.PENDING, Priority.NORMAL] == 1
            assert await one.states(live, named) == [State.SUCCEEDED, State.PENDING]
            counts = await one.counts()
            assert counts[b"f", State.SUCCEEDED, Priority.NORMAL] == (2 if kind == "waited" else 1)
            # Where only the server could see it, the next group is not tried: what joins others does so in a row.
            missed = not one.engine._writer.backoff.tries(asyncio.get_running_loop().time())  # noqa: SLF001 - when luck is tried shows nowhere else
            assert missed == (kind in {"joined", "another's", "waited"})

    asyncio.run(test())
    assert errors(postgres, database) == [], "a refused group leaves no line in the server's log"


def test_errors_of_a_database_are_found_in_the_log(postgres: PostgresServer, database: str) -> None:
    """Otherwise the absence of errors would prove nothing."""

    async def test() -> None:
        async with session(database) as other:
            with pytest.raises(asyncpg.DivisionByZeroError):
                await other.execute("SELECT 1 / 0")

    asyncio.run(test())
    assert len(errors(postgres, database)) == 1


def test_the_fast_path_is_not_retried_at_once() -> None:
    backoff = FastPathBackoff()
    assert backoff.tries(100.0)
    backoff.missed(100.0)
    assert not backoff.tries(100.0 + BACKOFF - 0.1)
    assert backoff.tries(100.0 + BACKOFF)


def test_a_lost_answer_is_recovered(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with node(database) as one:
            await register(one)
            (old,) = await one.submitted(state=State.LEASED)
            writes = one.engine._writer._connection  # noqa: SLF001 - one of its two connections is to be disturbed
            assert writes is not None
            fetch: Any = type(writes).fetchval

            async def lose(self: object, query: str, *values: object) -> object:
                found: object = await fetch(self, query, *values)
                if query == JOBS_SQL["fast_path"]:
                    writes.terminate()
                    raise ConnectionResetError("the answer is lost")
                return found

            monkeypatch.setattr(type(writes), "fetchval", lose)
            new = one.job()
            assert await one.group(one.settle(old), one.submit(new)) == [set(), {}]
            assert await one.states(old, new) == [State.SUCCEEDED, State.PENDING]
            assert (await one.counts())[b"f", State.SUCCEEDED, Priority.NORMAL] == 1

    asyncio.run(test())


def test_the_fast_path_allocates_no_place_without_submits(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await register(one)
            (old,) = await one.submitted(state=State.LEASED)
            before = await other.fetchval("SELECT last_value FROM places")
            assert await one.group(one.settle(old)) == [set()]
            assert await other.fetchval("SELECT last_value FROM places") == before

    asyncio.run(test())


def test_the_fast_path_locks_jobs_in_the_order_of_all_statements(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await register(one)
            first, second = await one.submitted(2, state=State.LEASED)
            await other.execute("BEGIN")
            await other.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", first.id)
            group = one.begin(one.settle(second, first))
            await eventually(lambda: waiting(database), "the group waits for the first job")
            await other.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE NOWAIT", second.id)
            await other.execute("COMMIT")
            assert await group == [set()]

    asyncio.run(test())


def test_the_fast_path_does_not_wait_long_for_a_unique(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch, steps: list[int]
) -> None:
    """Another group that takes the unique at this moment may wait for this group, too."""
    patient = JOBS_SQL["submit_unique"].replace("100ms", "0")
    monkeypatch.setitem(JOBS_SQL, "submit_unique", patient)

    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await register(one)
            await other.execute("BEGIN")
            await other.execute(
                "INSERT INTO jobs (id, place, created_us, function, state, priority, slot, uniq, payload)"
                " SELECT 1, 1, 1, id, 1, 1, 1, 'u', '' FROM functions"
            )
            steps.clear()
            group = one.begin(one.submit(one.job(unique=b"u")))
            await eventually(lambda: waiting(database, "INSERT"), "it waits step by step")
            await other.execute("ROLLBACK")
            assert await group == [{}]
            assert len(steps) == 1, "it is tried once"

    asyncio.run(test())
    assert errors(postgres, database) == []


def test_a_group_too_large_for_one_message_runs_step_by_step(
    database: str, monkeypatch: pytest.MonkeyPatch, steps: list[int]
) -> None:
    async def test() -> None:
        async with node(database) as one:
            await register(one)
            (old,) = await one.submitted(state=State.LEASED)
            steps.clear()
            await one.submitted(2)
            assert steps == []
            monkeypatch.setattr(transaction, "PORTION_BYTES", 1)
            await one.submitted(2)
            assert len(steps) == 1, "two payloads of a byte each"
            assert await one.group(one.submit(one.job()), one.settle(old)) == [{}, set()]
            assert len(steps) == 2, "a payload and a result"

    asyncio.run(test())


async def waiting(database: str, statement: str = "") -> int:
    """Return how many sessions wait for a lock, with a statement that begins so."""
    async with session(database) as other:
        number: int = await other.fetchval(
            "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted AND starts_with(query, $1)",
            statement,
        )
        return number
