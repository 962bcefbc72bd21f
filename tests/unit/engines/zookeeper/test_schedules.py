"""The schedules' handlers on one ensemble, beyond the conformance suite of all engines."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from tests.conformance.suite.paging import answer, everything

from mainspring.engines.zookeeper import paths, records, schedule_places, schedule_tables
from mainspring.engines.zookeeper.schedule_places import Specifications
from mainspring.engines.zookeeper.tree import Create, Done
from mainspring.errors import ConflictError, UsageError
from mainspring.jobs import store as job_ops
from mainspring.jobs.rules import Event
from mainspring.queries import NewestFires
from mainspring.schedules import store as ops
from mainspring.schedules.model import At, Fire, FireState, Overlap, Reason, Schedule
from mainspring.storage.engine import Budget

from .a_schedule import EVERYTHING, MINUTE, START, Scheduler, schedulers
from .a_session import falls_behind, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


def puts(number: int, **fields: object) -> list[ops.Change]:
    """Return changes that add many schedules."""
    schedule = Schedule(**{"name": "s", "function": b"f", "trigger": At(START), **fields})  # type: ignore[arg-type]
    return [ops.Change("put", f"s{at:05}", 0, replace(schedule, name=f"s{at:05}")) for at in range(number)]


async def commits(scheduler: Scheduler, operation: object) -> tuple[object, int]:
    """Return the outcome of an operation, and the number of its multis."""
    before = scheduler.node.tree.content.commits
    return await scheduler.ask(operation), scheduler.node.tree.content.commits - before


def test_many_due_schedules_fire_in_few_multis() -> None:
    async def check() -> None:
        async with schedulers("n1") as (a,):
            assert (await a.save(*puts(250))).error is None
            fired, number = await commits(a, await a.firing())
            assert isinstance(fired, dict)
            assert all(one.won for one in fired.values())
            assert number < 15
            assert len(await a.pending("f")) == 250
            await a.check()

    run(check())


def test_due_schedules_are_found_by_names_only() -> None:
    """The number of reads does not depend on the number of schedules."""

    async def check() -> None:
        async with schedulers("n1") as (a,):
            await a.save(*puts(200, trigger=At(START + 90 * MINUTE)))
            await a.add("near", trigger=At(START + MINUTE))
            before = a.node.tree.reads
            upcoming = await a.due(START + MINUTE)
            assert [one.name for one, _ in upcoming.due] == ["near"]
            assert upcoming.next_us == START + 90 * MINUTE
            assert a.node.tree.reads - before <= 1 + 2 * schedule_places.SHARDS
            later = await a.due(START + 100 * MINUTE, limit=50)
            assert [one.name for one, _ in later.due] == ["near", *(f"s{at:05}" for at in range(49))]
            assert later.next_us == START + 90 * MINUTE

    run(check())


def test_foreign_nodes_among_the_minutes_are_ignored() -> None:
    async def check() -> None:
        async with schedulers("n1") as (a,):
            await a.add("s", trigger=At(START))
            (minute,) = schedule_places.minutes_of(a.node.tree.content.names(schedule_places.DUE))
            for name in ("strange", "-", "1-0", f"{minute}/strange", f"{minute}/1.x.s"):
                assert isinstance(a.node.tree.content.apply([Create(f"{schedule_places.DUE}/{name}", b"?")]), Done)
            assert [one.name for one, _ in (await a.due()).due] == ["s"]
            await a.fire()
            for name in ("strange", "-1"):
                assert isinstance(
                    a.node.tree.content.apply([Create(f"{schedule_places.fires('s')}/{name}", b"?")]), Done
                )
            assert len(await a.rows("s")) == 1

    run(check())


def test_rows_are_listed_by_a_member_that_lags_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with schedulers("n1", "n2") as (a, b):
            await a.add("s", trigger=At(START))
            await a.fire()
            falls_behind(b.node.tree, monkeypatch)
            assert len(await b.rows("s")) == 1

    run(check())


def test_past_minutes_are_deleted() -> None:
    async def check() -> None:
        async with schedulers("n1") as (a,):
            await a.add("s", misfire="skip")
            for minute in (0, 1, 40, 41):
                a.now_us = START + minute * MINUTE
                await a.fire()
            await a.due()
            assert len(a.node.tree.content.names(schedule_places.DUE) or ()) == 2  # the next one, and the one before
            a.now_us = START + 42 * MINUTE
            assert set(await a.fire()) == {"s"}
            await a.check()

    run(check())


def test_a_deleted_minute_is_created_again() -> None:
    async def check() -> None:
        async with schedulers("n1", "n2") as (a, b):
            await a.add("s", trigger=At(START))
            await a.fire()
            b.now_us = START + 60 * MINUTE
            await b.due()
            assert a.node.tree.content.names(schedule_places.DUE) == []
            await a.add("t", trigger=At(START + 1))
            assert set((await a.schedules()).keys()) == {"s", "t"}
            assert [one.name for one, _ in (await b.due()).due] == ["t"]

    run(check())


# ---- specifications ----


def test_only_changed_specifications_are_read() -> None:
    async def check() -> None:
        async with schedulers("n1", "n2") as (a, b):
            await a.save(*puts(50))
            assert len(await b.schedules()) == 50
            await a.add("new")
            await a.save(ops.Change("remove", "s00007"))
            before = b.node.tree.reads
            cache = await b.node.session.memory(Specifications).now(fresh=True)
            assert b.node.tree.reads - before == 3  # sync, the version, and the changed specifications
            assert cache.catalogue.schedules.keys() == (await a.schedules()).keys()
            assert await b.node.session.memory(Specifications).now() is cache

    run(check())


def test_callers_during_the_first_refresh_wait_for_it() -> None:
    async def check() -> None:
        async with schedulers("n1", "n2") as (a, b):
            await a.save(*puts(3))
            specifications = b.node.session.memory(Specifications)
            for cache in await asyncio.gather(*(specifications.now() for _ in range(3))):
                assert len(cache.catalogue.schedules) == 3

    run(check())


def test_many_changes_are_made_in_portions() -> None:
    async def check() -> None:
        async with schedulers("n1") as (a,):
            saved, number = await commits(a, ops.SaveSchedules(puts(1000), START))
            assert isinstance(saved, ops.Saved)
            assert saved.error is None
            assert len(saved.schedules) == 1000
            assert all(saved.schedules.values())
            assert 3 <= number <= 20
            assert len(await a.schedules()) == 1000

    run(check())


def test_many_changes_of_which_the_last_is_wrong_change_nothing() -> None:
    async def check() -> None:
        async with schedulers("n1") as (a,):
            await a.add("old")
            orphan = Schedule(name="z", function=b"f", parents=("nobody",))
            for wrong, error in (
                (ops.Change("put", "z", 0, orphan), UsageError),
                (ops.Change("pause", "old", 9), ConflictError),
            ):
                saved = await a.save(*puts(700), wrong)
                assert isinstance(saved.error, error)
                assert saved.schedules["old" if wrong.name == "old" else "s00001"] == (await a.schedules()).get(
                    "old" if wrong.name == "old" else "s00001"
                )
                assert list(await a.schedules()) == ["old"]

    run(check())


def test_children_that_do_not_fit_into_a_transaction_are_refused() -> None:
    async def check() -> None:
        async with schedulers("n1") as (a,):
            parent = await a.add("parent")
            large = b"x" * (schedule_tables.MAX_FOLLOWING // 4)
            first = Schedule(name="c1", function=b"f", parents=("parent",), args=large)
            assert (await a.save(ops.Change("put", "c1", 0, first))).error is None
            saved = await a.save(ops.Change("put", "c2", 0, replace(first, name="c2")))
            assert isinstance(saved.error, UsageError)
            assert saved.schedules == {"c2": None}
            assert set(await a.schedules()) == {parent.name, "c1"}
            await a.fire()
            await a.end(await a.claim("parent"))
            assert await a.states("c1") == ["fired"]

    run(check())


def test_a_schedule_far_behind_is_caught_up_before_a_change() -> None:
    async def check() -> None:
        async with schedulers("n1") as (a,):
            schedule = await a.add("s", misfire="skip")
            a.now_us = START + 700 * MINUTE
            changed = replace(schedule, trigger=At(START + 800 * MINUTE))
            saved = await a.save(ops.Change("put", "s", 1, changed))
            assert isinstance(saved.error, ConflictError), "the catch-up has changed it"
            now = saved.schedules["s"]
            assert now is not None
            assert (await a.save(ops.Change("put", "s", now.state.version, changed))).error is None
            missed, last = sorted(await a.rows("s"), key=lambda row: row.fire_us)
            assert (missed.fire_us, missed.until_us, last.fire_us) == (
                START,
                START + 699 * MINUTE,
                START + 700 * MINUTE,
            )

    run(check())


# ---- the names of jobs ----


def test_the_next_run_has_the_unique_before_the_last_one_is_published() -> None:
    async def check() -> None:
        async with schedulers("n1") as (a,):
            await a.add("s", unique=b"u", overlap=Overlap.QUEUE)
            await a.fire()
            a.now_us = START + MINUTE
            await a.fire()
            first = await a.claim("s")
            await a.end(first)
            assert await a.states("s") == ["succeeded", "fired"]
            (second,) = await a.pending("s")
            assert second.id != first.id
            await a.check()
            # The node publishes its own completions blind: the result's version shows it that there is more to read.
            result = await a.node.tree.get(a.node.session.result(first.id))
            assert result is not None
            assert result.version > 0
            name = await a.node.tree.get(paths.name("s:u"))
            assert name is not None
            assert records.decode(name.data)["id"] == second.id
            refused = await a.ask(job_ops.Redrive(first.id))
            assert not refused.redriven

    run(check())


def test_a_failed_run_whose_name_the_next_run_has_is_not_redriven() -> None:
    async def check() -> None:
        async with schedulers("n1") as (a,):
            await a.add("s", unique=b"u", overlap=Overlap.QUEUE)
            await a.fire()
            a.now_us = START + MINUTE
            await a.fire()
            first = await a.claim("s")
            await a.end(first, Event.FAIL)
            (second,) = await a.pending("s")
            refused = await a.ask(job_ops.Redrive(first.id))
            assert (refused.redriven, refused.rival) == (False, second.id)

    run(check())


def test_a_run_gets_the_name_of_an_ended_unpublished_one() -> None:
    async def check() -> None:
        async with schedulers("n1") as (a,):
            await a.add("s", unique=b"u")
            await a.fire()
            await a.end(await a.claim("s"))
            a.now_us = START + MINUTE
            await a.fire()
            assert await a.states("s") == ["succeeded", "fired"]
            await a.check()

    run(check())


def test_rows_that_joined_a_job_end_with_it_and_the_rest_by_repair() -> None:
    async def check() -> None:
        async with schedulers("n1") as (a,):
            more = 5
            await a.add("s", unique=b"u", misfire="all")
            await a.fire()
            a.now_us = START + (schedule_tables.MAX_JOINED + more) * MINUTE
            await a.fire()
            rows = await a.rows("s")
            assert [row.state for row in rows[:2]] == [FireState.FIRED, FireState.JOINED]
            assert {row.job for row in rows} == {rows[0].job}
            assert await a.mend() == 0
            await a.end(await a.claim("s"))
            assert sum(bool(row.outcome) for row in await a.rows("s")) == 1 + schedule_tables.MAX_JOINED
            assert await a.mend() == more
            assert all(row.outcome == "succeeded" for row in await a.rows("s"))
            assert await a.mend() == 0
            await a.check()

    run(check())


# ---- ends ----


def test_the_row_of_a_job_ends_with_it_in_every_outcome() -> None:
    async def check() -> None:
        async with schedulers("n1") as (a,):
            for name in ("s", "t", "u", "v"):
                await a.add(name, overlap=Overlap.QUEUE, expires=30.0 if name == "v" else None)
            a.now_us = START
            await a.fire()
            await a.end(await a.claim("s"), Event.FAIL)
            (waiting,) = await a.pending("t")
            await a.ask(job_ops.Cancel(waiting.id, b"{}", a.now_us))
            await a.ask(job_ops.Wake(START + 31_000_000))
            stale = await a.claim("u")
            assert await a.end(stale) == set()
            assert await a.end(stale) == {stale.id}
            notified = [await a.states(name) for name in ("s", "t", "u", "v")]
            assert notified == [["failed"], ["cancelled"], ["succeeded"], ["expired"]]
            await a.check()

    run(check())


def test_runs_of_one_family_that_end_at_once_do_not_conflict() -> None:
    async def check() -> None:
        async with schedulers("n1") as (a,):
            await a.add("s", misfire="all")
            await a.add("c", parents=("s",))
            a.now_us = START + 29 * MINUTE
            await a.fire()
            jobs = [await a.node.assign_to(job, a.node) for job in await a.pending("s")]
            ends = job_ops.Settle([a.settlement(job) for job in jobs])
            stale, number = await commits(a, ends)
            assert stale == set()
            assert number <= len(jobs) + 5
            assert await a.states("c") == ["fired"] * 30
            await a.check()

    run(check())


def test_pages_of_many_histories_read_the_nodes_of_their_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with schedulers("n1") as (a,):
            tree, read = a.node.tree, list[str]()
            times = [START + number * MINUTE for number in range(300)]
            names = tuple(f"s{number:02}" for number in range(60))
            blocks = sorted({time // schedule_places.BLOCK_US for time in times})
            for name in names:
                history = schedule_places.fires(name)
                created = [Create(history), *(Create(f"{history}/{block}") for block in blocks)]
                rows = [
                    Fire(schedule=name, fire_us=time, state=FireState.SKIPPED, reason=Reason.MISFIRE) for time in times
                ]
                created += [
                    Create(schedule_places.row(name, row.fire_us), schedule_places.Row(row).encode()) for row in rows
                ]
                assert isinstance(tree.content.apply(created), Done)
            get_many = tree.get_many

            async def counted(at: Sequence[str]) -> list[Any]:
                read.extend(at)
                return await get_many(at)

            monkeypatch.setattr(tree, "get_many", counted)
            query = NewestFires(
                names=names,
                before_us=(times[-1] + 1,) * len(names),
                since_us=times[100],
                each=2000,
                limit=EVERYTHING,
            )
            budget = Budget(part=200, rows=200)
            page = await answer(a.node, query, budget)
            assert [(row.schedule, row.fire_us) for row in page.items] == [("s00", time) for time in times[100:]]
            assert len(read) == 200
            rest = await everything(a.node, replace(query, after=page.next), budget)
            found = [(row.schedule, row.fire_us) for row in rest]
            assert found == [(name, time) for name in names[1:] for time in times[100:]]
            assert len(read) == 200 * len(names)
            few = replace(query, names=names[:2], before_us=(times[250],) * 2, each=3)
            found = [(row.schedule, row.fire_us) for row in await everything(a.node, few, budget)]
            assert found == [(name, time) for name in names[:2] for time in times[247:250]]

    run(check())
