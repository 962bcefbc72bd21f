"""Two nodes with the same schedules: one acts between any two steps of the other, and each fire time is fired once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from tests.zookeeper.memory import Fate

from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.schedule_places import Row
from mainspring.engines.zookeeper.schedule_tables import ZookeeperSchedules
from mainspring.engines.zookeeper.transaction import Transaction
from mainspring.engines.zookeeper.tree import Delete
from mainspring.errors import StoreFencedError
from mainspring.jobs.rules import Event
from mainspring.schedules import store as ops
from mainspring.schedules.model import At, FireState, Overlap
from mainspring.schedules.rules import MOST_ROWS
from mainspring.schedules.unit import MIN_ROWS

from .a_schedule import MINUTE, START, Race, Scheduler, schedulers
from .a_session import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mainspring.schedules.model import Fire

    Prepare = Callable[[Scheduler, Scheduler], Awaitable[tuple[Any, Any]]]
    """Creates the content, and returns the operations of the two nodes."""
    Check = Callable[[Scheduler, Scheduler, Any, Any], Awaitable[None]]

LEAST_STEPS = 2
"""The least steps of each operation: with fewer the race did not happen."""


async def at_every_step(prepare: Prepare, check: Check) -> None:
    """Run one node's operation, and at each of its steps, once, the whole operation of the other."""
    steps = 0
    while True:
        async with schedulers("n1", "n2") as (a, b):
            first, second = await prepare(a, b)
            race = Race(a, steps)
            one, two = await race.run(first, second)
            a.was_met = race.was_met
            await check(a, b, one, two)
            await a.check(b)
        if not race.was_met:
            break
        steps += 1
    assert steps >= LEAST_STEPS


# ---- races ----


async def both_fire(a: Scheduler, b: Scheduler) -> tuple[Any, Any]:
    for name in ("s", "t"):
        await a.add(name)
    return a.ask(await a.firing()), b.ask(await b.firing())


async def one_has_fired(a: Scheduler, b: Scheduler, one: Any, two: Any) -> None:
    del b
    for name in ("s", "t"):
        assert one[name].won != two[name].won
        assert one[name].stored == two[name].stored
        assert await a.states(name) == ["fired"]
        assert len(await a.pending(name)) == 1


async def two_parents_end(a: Scheduler, b: Scheduler) -> tuple[Any, Any]:
    await a.add("s")
    await a.add("t")
    await a.add("child", parents=("s", "t"))
    await a.fire()
    return a.end(await a.claim("s")), b.end(await b.claim("t"))


async def one_child_has_started(a: Scheduler, b: Scheduler, one: Any, two: Any) -> None:
    del b
    assert one == two == set()
    assert await a.states("child") == ["fired"]
    assert len(await a.pending("child")) == 1


async def a_run_ends_while_the_next_is_due(a: Scheduler, b: Scheduler) -> tuple[Any, Any]:
    await a.add("s", overlap=Overlap.QUEUE)
    await a.fire()
    a.now_us = b.now_us = START + MINUTE
    return a.end(await a.claim("s")), b.ask(await b.firing())


async def the_next_one_has_started(a: Scheduler, b: Scheduler, one: Any, two: Any) -> None:
    del b, one, two
    assert await a.states("s") == ["succeeded", "fired"]
    assert len(await a.pending("s")) == 1


async def the_next_is_due_while_a_run_ends(a: Scheduler, b: Scheduler) -> tuple[Any, Any]:
    end, fire = await a_run_ends_while_the_next_is_due(b, a)
    return fire, end


async def the_runs_of_two_children_end(a: Scheduler, b: Scheduler) -> tuple[Any, Any]:
    await a.add("s", wait_for_children=True, overlap=Overlap.QUEUE)
    await a.add("c", parents=("s",))
    await a.add("d", parents=("s",))
    await a.fire()
    await a.end(await a.claim("s"))
    return a.end(await a.claim("c")), b.end(await b.claim("d"), Event.FAIL)


async def their_parent_is_finished(a: Scheduler, b: Scheduler, one: Any, two: Any) -> None:
    del b, one, two
    (row,) = await a.rows("s")
    assert row.finished


async def a_job_ends_that_is_joined(a: Scheduler, b: Scheduler) -> tuple[Any, Any]:
    await a.add("s", unique=b"u")
    await a.fire()
    a.now_us = b.now_us = START + MINUTE
    return a.end(await a.claim("s")), b.ask(await b.firing())


async def a_job_is_joined_that_ends(a: Scheduler, b: Scheduler) -> tuple[Any, Any]:
    end, fire = await a_job_ends_that_is_joined(b, a)
    return fire, end


async def it_has_ended_for_both_or_runs_again(a: Scheduler, b: Scheduler, one: Any, two: Any) -> None:
    del b, one, two
    first, second = await a.rows("s")
    assert first.outcome == "succeeded"
    if second.state is FireState.JOINED:
        assert (second.job, second.outcome) == (first.job, "succeeded")
    else:
        assert len(await a.pending("s")) == 1


async def a_parent_ends_while_a_child_is_added(a: Scheduler, b: Scheduler) -> tuple[Any, Any]:
    await a.add("s")
    await a.fire()
    return a.end(await a.claim("s")), b.add("child", parents=("s",))


async def the_child_was_there_or_not(a: Scheduler, b: Scheduler, one: Any, two: Any) -> None:
    del b, one, two
    assert await a.states("s") == ["succeeded"]
    assert await a.states("child") == (["fired"] if a.was_met else [])


async def two_make_a_cycle(a: Scheduler, b: Scheduler) -> tuple[Any, Any]:
    s, t = await a.add("s"), await a.add("t")
    changes = [
        ops.Change("put", "s", 1, replace(s, trigger=None, parents=("t",))),
        ops.Change("put", "t", 1, replace(t, trigger=None, parents=("s",))),
    ]
    return a.save(changes[0]), b.save(changes[1])


async def one_was_refused(a: Scheduler, b: Scheduler, one: Any, two: Any) -> None:
    del b
    assert (one.error is None) != (two.error is None)
    stored = await a.schedules()
    assert sum(bool(found.schedule.parents) for found in stored.values()) == 1


async def both_trigger(a: Scheduler, b: Scheduler) -> tuple[Any, Any]:
    await a.add("s")
    return tuple(  # type: ignore[return-value]
        node.ask(ops.TriggerSchedule("s", START)) for node in (a, b)
    )


async def both_have_run(a: Scheduler, b: Scheduler, one: Any, two: Any) -> None:
    del b
    assert {one.fire_us, two.fire_us} == {START + 1, START + 2}
    assert await a.states("s") == ["fired", "fired"]


RACES: dict[str, tuple[Prepare, Check]] = {
    "both fire": (both_fire, one_has_fired),
    "two parents end": (two_parents_end, one_child_has_started),
    "a run ends while the next is due": (a_run_ends_while_the_next_is_due, the_next_one_has_started),
    "the next is due while a run ends": (the_next_is_due_while_a_run_ends, the_next_one_has_started),
    "the runs of two children end": (the_runs_of_two_children_end, their_parent_is_finished),
    "a job ends that is joined": (a_job_ends_that_is_joined, it_has_ended_for_both_or_runs_again),
    "a job is joined that ends": (a_job_is_joined_that_ends, it_has_ended_for_both_or_runs_again),
    "a parent ends while a child is added": (a_parent_ends_while_a_child_is_added, the_child_was_there_or_not),
    "two make a cycle": (two_make_a_cycle, one_was_refused),
    "both trigger": (both_trigger, both_have_run),
}
"""The operations of both nodes, and the check of their result; afterwards the whole content is checked."""


@pytest.mark.parametrize("name", RACES)
def test_races_have_one_consistent_result(name: str) -> None:
    run(at_every_step(*RACES[name]))


# ---- each guard is necessary ----


async def _without_joined(self: ZookeeperSchedules, changed: dict[ops.Key, Fire]) -> dict[ops.Key, Row]:
    del self
    return {key: Row(fire) for key, fire in changed.items()}


def _unwritten(self: ZookeeperSchedules, key: ops.Key, row: Row) -> None:
    self._rows[key] = row


PLANTS: list[tuple[str, type, str, Callable[..., Any]]] = [
    ("the next is due while a run ends", Transaction, "touch", lambda self, path: None),
    ("both trigger", ZookeeperSchedules, "_write_row", _unwritten),
    ("a parent ends while a child is added", Transaction, "expect", lambda self, path, version: None),
    ("a job ends that is joined", ZookeeperSchedules, "_with_joined", _without_joined),
]


@pytest.mark.parametrize(("name", "owner", "method", "instead"), PLANTS)
def test_a_missing_guard_fails_a_race(
    name: str, owner: type, method: str, instead: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, method, instead)
    with pytest.raises(AssertionError):
        run(at_every_step(*RACES[name]))


# ---- lost answers ----


@pytest.mark.parametrize("fate", Fate)
@pytest.mark.parametrize("name", RACES)
def test_a_lost_answer_changes_nothing(name: str, fate: Fate) -> None:
    """The answer to each commit of the first node is lost once, before the second node starts."""
    prepare, check = RACES[name]

    async def lose() -> None:
        number = 0
        lost = True
        while lost:
            async with schedulers("n1", "n2") as (a, b):
                first, second = await prepare(a, b)
                left, lost = number, False

                def before(changes: object) -> Fate | None:
                    nonlocal left, lost
                    del changes
                    left -= 1
                    if left == -1:
                        lost = True
                        return fate
                    return None

                a.node.tree.before = before
                one = await first
                a.node.tree.before = None
                await check(a, b, one, await second)
                await a.check(b)
            number += 1
        assert number > 1

    run(lose())


def test_a_node_whose_term_has_ended_writes_nothing() -> None:
    async def end() -> None:
        async with schedulers("n1", "n2") as (a, b):
            await a.add("s", overlap=Overlap.QUEUE)
            await a.fire()
            job = await a.claim("s")
            a.now_us = b.now_us = START + MINUTE
            firing = await a.firing()
            await b.node.tree.commit([Delete(paths.worker(a.node.session.who))])
            with pytest.raises(StoreFencedError):
                await a.ask(firing)
            with pytest.raises(StoreFencedError):
                await a.end(job)
            assert await b.states("s") == ["fired"]
            assert a.lifecycle.live == a.lifecycle.committed

    run(end())


def test_a_removed_schedule_has_fired_before_or_not() -> None:
    async def race() -> None:
        outcomes = set()
        steps = 0
        while True:
            async with schedulers("n1", "n2") as (a, b):
                await a.add("s")
                await a.add("t")
                firing = await a.firing()
                step = Race(a, steps)
                fired, saved = await step.run(a.ask(firing), b.save(ops.Change("remove", "s")))
                assert saved.error is None
                assert fired["t"].won
                outcomes.add(fired["s"].won)
                assert await a.states("s") == (["fired"] if fired["s"].won else [])
                if fired["s"].won:
                    await a.end(await a.claim("s"))
                    assert await a.states("s") == ["succeeded"]
            if not step.was_met:
                break
            steps += 1
        assert outcomes == {False, True}

    run(race())


def test_two_concurrent_repairs_repair_once() -> None:
    async def race() -> None:
        steps = 0
        while True:
            async with schedulers("n1", "n2") as (a, b):
                joined = await a.node.submitted(function=b"s", unique=b"u")
                await a.add("s", unique=b"u", overlap=Overlap.QUEUE)
                await a.fire()
                a.now_us = b.now_us = START + MINUTE
                await a.fire()
                assert await a.states("s") == ["joined", "waiting"]
                await a.end(await a.node.assign_to(joined, a.node))
                step = Race(a, steps)
                one, two = await step.run(a.mend(), b.mend())
                assert one + two == 1
                assert await a.states("s") == ["succeeded", "fired"]
                assert len(await a.pending("s")) == 1
            if not step.was_met:
                break
            steps += 1
        assert steps >= LEAST_STEPS

    run(race())


def test_two_concurrent_retentions_drop_each_row_once() -> None:
    """A row that one node has dropped does not stop the other, which continues with the next."""

    async def race() -> None:
        steps = 0
        while True:
            async with schedulers("n1", "n2") as (a, b):
                await a.add("s", misfire="skip", misfire_after=0.0)
                # Not all at once: more than MOST_ROWS times would share a row.
                for minutes in (*range(MOST_ROWS, MIN_ROWS + 20, MOST_ROWS), MIN_ROWS + 20):
                    a.now_us = START + minutes * MINUTE - 1
                    await a.fire()
                if steps % 2:
                    await a.save(ops.Change("remove", "s"))
                step = Race(a, steps)
                before_us = START + 10_000 * MINUTE
                one, two = await step.run(
                    a.ask(ops.ForgetFires("", before_us)),
                    b.ask(ops.ForgetFires("", before_us, limit=15)),
                )
                assert one.number + two.number == 20
                assert [row.fire_us for row in await a.rows("s")] == [
                    START + (20 + at) * MINUTE for at in range(MIN_ROWS)
                ]
                # A dropped fire time does not come back.
                if steps % 2:
                    await a.add("s", trigger=At(START + 19 * MINUTE))
                    await a.fire()
                    assert (await a.states("s"))[0] == "misfire"
                await a.check()
            if not step.was_met:
                break
            steps += 1
        assert steps >= LEAST_STEPS

    run(race())
