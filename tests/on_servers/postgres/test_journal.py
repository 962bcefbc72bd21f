from __future__ import annotations

import asyncio

import pytest

from mainspring.engines.postgres import transaction
from mainspring.engines.postgres.transaction import Transaction
from mainspring.jobs.model import Priority, State

from .a_fleet import Node, node, session


async def rows(database: str, table: str) -> int:
    async with session(database) as other:
        number: int = await other.fetchval(f"SELECT count(*) FROM {table}")
        return number


def test_the_counts_are_the_same_before_and_after_folding(database: str) -> None:
    async def test() -> None:
        async with node(database) as one:
            await one.submitted(3)
            (job,) = await one.submitted(state=State.LEASED)
            await one.group(one.settle(job))
            before = await one.counts()
            assert before == {(b"f", State.PENDING, Priority.NORMAL): 3, (b"f", State.SUCCEEDED, Priority.NORMAL): 1}
            assert await rows(database, "journal") == 3
            await one.engine.fold_once()
            assert await one.counts() == before
            assert await rows(database, "journal") == 1, "the newest stays: a second attempt must conflict with it"
            assert await rows(database, "counts") > 0
            await one.engine.fold_once()
            assert await one.counts() == before

    asyncio.run(test())


def test_the_journal_of_an_ended_term_is_folded_completely_and_the_term_forgotten(database: str) -> None:
    async def test() -> None:
        async with node(database, "a") as one:
            async with node(database, "b") as two:
                jobs = await two.submitted(2)
            before = await one.counts()
            await one.engine.fold_once()
            await one.engine.forget_once()
            assert await rows(database, "journal") == 0
            assert await rows(database, "terms WHERE gone AND term > 0") == 1
            assert await one.counts() == before
            assert await one.states(*jobs) == [State.PENDING] * 2
            assert one.nodes[two.term] == "b", "handles of its jobs can still be written"

    asyncio.run(test())


def test_a_term_that_holds_jobs_is_not_forgotten(database: str) -> None:
    async def test() -> None:
        async with node(database, "a") as one:
            async with node(database, "b") as two:
                await two.submitted(state=State.LEASED)
            assert await one.engine.end(two.term)
            await one.engine.fold_once()
            await one.engine.forget_once()
            assert await rows(database, "terms WHERE gone AND term > 0") == 0
            assert await one.engine.abandoned() == [two.term]

    asyncio.run(test())


def test_the_counts_stay_exact_while_groups_run_and_several_nodes_fold(database: str) -> None:
    async def test() -> None:
        async def work(one: Node) -> None:
            for _ in range(40):
                jobs = await one.submitted(5, state=State.LEASED)
                await one.group(one.settle(*jobs[:2]))

        async def look(one: Node) -> None:
            # The third node's own groups are its jobs of another function: whatever is folded meanwhile, they are all there.
            for number in range(1, 40):
                await one.submitted(function=b"mine")
                counts = await one.counts()
                assert sum(count for (name, _, _), count in counts.items() if name == b"mine") == number
                assert all(count > 0 for count in counts.values())

        async def fold(one: Node, done: asyncio.Event) -> None:
            while not done.is_set():
                await one.engine.fold_once()

        async with node(database, "a") as one, node(database, "b") as two, node(database, "c") as third:
            done = asyncio.Event()
            folding = [asyncio.ensure_future(fold(each, done)) for each in (one, two, third)]
            await asyncio.gather(work(one), work(two), look(third))
            done.set()
            await asyncio.gather(*folding)
            counts = await third.counts()
            by_state = {state: number for (name, state, _), number in counts.items() if name == b"f"}
            assert by_state == {State.LEASED: 240, State.SUCCEEDED: 160}
            async with session(database) as other:
                assert await other.fetchval("SELECT count(*) FROM jobs WHERE state = 2") == 240

    asyncio.run(test())


def test_a_group_is_committed_once_under_its_number(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await one.submitted()
            await one.submitted()
            for number in (1, 2):
                with pytest.raises(Exception, match=f"group {number} of term 1 was committed"):
                    await other.execute(f"SELECT enter(1, {number})")
            await one.engine.fold_once()
            for number in (1, 2):
                with pytest.raises(Exception, match=f"group {number} of term 1 was committed"):
                    await other.execute(f"SELECT enter(1, {number})")
            with pytest.raises(Exception, match="journal_pkey"):
                await other.execute("INSERT INTO journal VALUES (1, 2, '{}', '{}', '{}', '{}')")
            await other.execute("SELECT enter(1, 3)")

    asyncio.run(test())


def test_an_entry_holds_the_changes() -> None:
    tx = Transaction(None, 7, None, None, {})  # type: ignore[arg-type]
    assert transaction.journal_entry(tx, 9) == "INSERT INTO journal VALUES (7,9,'{}','{}','{}','{}'); COMMIT"
    for change in ((1, State.RUNNING, 0, 2), (1, State.LEASED, 0, 1), (1, 4, 0, 1), (1, 4, 0, -1), (2, 1, 2, -1)):
        tx.count(*change)
    assert (
        transaction.journal_entry(tx, 9) == "INSERT INTO journal VALUES (7,9,'{1,2}','{2,1}','{0,2}','{3,-1}'); COMMIT"
    )
