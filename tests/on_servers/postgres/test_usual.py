"""Groups in one statement: taken where all is as usual, and nowhere to be told from groups that are run step by step."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.engines.postgres import connection, journal, rows
from mainspring.engines.postgres.rows import SQL
from mainspring.engines.postgres.usual import CALM, FIRST, LONGEST, Luck
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, Priority, State

from .a_fleet import PATIENCE, Node, eventually, node, session

if TYPE_CHECKING:
    from mainspring.engines.postgres.transaction import Transaction


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the groups that come to their end step by step."""
    entry, numbers = journal.entry, list[int]()

    def note(tx: Transaction, number: int) -> str:
        numbers.append(number)
        return entry(tx, number)

    monkeypatch.setattr(journal, "entry", note)
    return numbers


async def known(one: Node) -> None:
    """Store a first job: functions that have no number yet are not usual."""
    await one.submitted()


async def mixed(one: Node) -> tuple[list[object], list[Job], list[Job]]:
    """Settle some jobs and submit others in one group; returns its outcomes and both."""
    old = await one.submitted(3, state=State.LEASED)
    leased = [one.job(state=State.LEASED, unique=b"u%d" % number) for number in (2, 1)]
    new = [*leased, one.job(), one.job(priority=int(Priority.HIGH), unique=b"u3")]
    outcomes = await one.group(one.submit(*new[:2]), one.settle(*old[:2]), one.settle(old[2]), one.submit(*new[2:]))
    return outcomes, old, new


async def whole(database: str, one: Node) -> object:
    """Return all that there is of jobs, without what is different from run to run."""
    async with session(database) as other:
        jobs = await other.fetch("SELECT state, term > 0, priority, uniq, payload FROM jobs ORDER BY place")
        ended = await other.fetch(
            "SELECT attempt, term > 0, result, output_size, ended_us, started_us FROM ended ORDER BY id"
        )
    return [tuple(row) for row in jobs], [tuple(row) for row in ended], await one.counts()


def test_a_usual_group_is_one_statement(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with node(database) as one:
            await known(one)
            with monkeypatch.context() as patch:
                patch.setattr(journal, "entry", lambda *_: "SELECT 'step by step' / 0")
                outcomes, old, new = await mixed(one)
            assert outcomes == [{}, set(), set(), {}]
            assert await one.states(*old, *new) == [State.SUCCEEDED] * 3 + [State.LEASED] * 2 + [State.PENDING] * 2
            assert (await one.find(old[0].id))[old[0].id].result == b"r"
            high = await one.group(one.claim(1))
            assert [job.id for (jobs,) in high for job in jobs] == [new[3].id]

    asyncio.run(test())


def test_it_is_the_same_as_step_by_step(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> object:
        async with node(database) as one:
            await known(one)
            await mixed(one)
            found = await whole(database, one)
        async with session(database) as other:
            await other.execute("TRUNCATE jobs, ended, journal, counts")
        return found

    at_once = asyncio.run(run())
    monkeypatch.setattr(Luck, "tries", lambda *_: False)
    steps = asyncio.run(run())
    assert at_once == steps


UNUSUAL = ["joined", "joined in the group", "stale", "another's", "twice", "waited", "new function"]


def test_it_is_made_of_the_statements_that_stand_for_each_step() -> None:
    """They are written twice, as SQL has no way to name a part of a statement."""

    def plain(statement: str) -> str:
        return re.sub(r"\$\d+", "$", " ".join(statement.split()))

    whole = plain(SQL["usual"])
    settled, _, _ = plain(SQL["succeed"]).removeprefix("WITH ").partition(" SELECT count(*), array_agg")
    columns, _, rest = plain(SQL["submit_unique"]).partition(" FROM ( SELECT")
    assert settled.endswith("FROM gone )")
    assert columns.endswith("s.keep")
    for part in (settled, columns, rest.partition("unnest(")[2].partition(" AS s (")[2]):
        assert part
        assert part in whole


@pytest.mark.parametrize("kind", UNUSUAL)
def test_what_is_not_usual_has_its_own_outcome(database: str, kind: str) -> None:
    async def test() -> None:
        async with node(database) as one:
            await known(one)
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
                    await one.group(ops.Wait(one.term, [waited.id]))
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
            missed = not one.engine._writer.luck.tries(asyncio.get_running_loop().time())
            assert missed == (kind in {"joined", "another's", "waited"})

    asyncio.run(test())


def test_luck_is_tried_less_and_less_while_it_fails() -> None:
    luck = Luck()
    now, pauses = 100.0, []
    for _ in range(9):
        assert luck.tries(now)
        luck.missed(now)
        assert not luck.tries(now)
        begun = now
        while not luck.tries(now):
            now += FIRST / 4
        pauses.append(now - begun)
    assert pauses == [FIRST, 2, 4, 8, 16, 32, LONGEST, LONGEST, LONGEST]
    now += CALM * LONGEST
    luck.missed(now)
    assert luck.tries(now + FIRST), "it was long ago"


def test_a_lost_answer_is_asked_for(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with node(database) as one:
            await known(one)
            (old,) = await one.submitted(state=State.LEASED)
            writes = one.engine._writer._connection
            assert writes is not None
            fetch: Any = type(writes).fetch

            async def lose(self: object, query: str, *values: object) -> object:
                found: object = await fetch(self, query, *values)
                if "fence AS" in query:
                    writes.terminate()
                    raise ConnectionResetError("the answer is lost")
                return found

            monkeypatch.setattr(type(writes), "fetch", lose)
            new = one.job()
            assert await one.group(one.settle(old), one.submit(new)) == [set(), {}]
            assert await one.states(old, new) == [State.SUCCEEDED, State.PENDING]
            assert (await one.counts())[b"f", State.SUCCEEDED, Priority.NORMAL] == 1

    asyncio.run(test())


def test_it_takes_no_place_where_it_submits_nothing(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await known(one)
            (old,) = await one.submitted(state=State.LEASED)
            before = await other.fetchval("SELECT last_value FROM places")
            assert await one.group(one.settle(old)) == [set()]
            assert await other.fetchval("SELECT last_value FROM places") == before

    asyncio.run(test())


def test_it_locks_jobs_in_the_order_of_all_statements(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await known(one)
            first, second = await one.submitted(2, state=State.LEASED)
            await other.execute("BEGIN")
            await other.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", first.id)
            group = one.begin(one.settle(second, first))
            await eventually(lambda: waiting(database), "the group waits for the first job")
            await other.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE NOWAIT", second.id)
            await other.execute("COMMIT")
            assert await group == [set()]

    asyncio.run(test())


def test_it_does_not_wait_long_for_a_unique(database: str, monkeypatch: pytest.MonkeyPatch, steps: list[int]) -> None:
    """Whoever takes the unique at this moment may wait for this group, too."""
    monkeypatch.setitem(connection.SETTINGS, "lock_timeout", "0")

    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await known(one)
            await other.execute("BEGIN")
            await other.execute(
                "INSERT INTO jobs (id, place, created_us, function, state, priority, slot, uniq, payload)"
                " SELECT 1, 1, 1, id, 1, 1, 1, 'u', '' FROM functions"
            )
            writer = one.engine._writer
            steps.clear()
            attempts = writer.attempts
            group = one.begin(one.submit(one.job(unique=b"u")))
            async with asyncio.timeout(PATIENCE):
                while writer.attempts < attempts + 2:  # noqa: ASYNC110 - no event tells
                    await asyncio.sleep(0.01)
            await other.execute("ROLLBACK")
            assert await group == [{}]
            assert len(steps) == 1, "it is tried once"

    asyncio.run(test())


def test_what_is_too_large_for_one_message_goes_step_by_step(
    database: str, monkeypatch: pytest.MonkeyPatch, steps: list[int]
) -> None:
    async def test() -> None:
        async with node(database) as one:
            await known(one)
            (old,) = await one.submitted(state=State.LEASED)
            steps.clear()
            await one.submitted(2)
            assert steps == []
            monkeypatch.setattr(rows, "PORTION", 1)
            await one.submitted(2)
            assert len(steps) == 1, "two payloads of a byte each"
            assert await one.group(one.submit(one.job()), one.settle(old)) == [{}, set()]
            assert len(steps) == 2, "a payload and a result"

    asyncio.run(test())


async def waiting(database: str) -> int:
    """Return how many sessions wait for a lock."""
    async with session(database) as other:
        number: int = await other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return number
