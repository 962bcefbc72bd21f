"""Three nodes run all operations concurrently on a few uniques: each answer stays true, and the counts are right."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.suite.paging import everything

from mainspring.engines.postgres import (
    changing,
    lists,
)
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import Counts, Job, Options, Priority, State
from mainspring.jobs.rules import Event, Settlement
from mainspring.queries import QueryJobs

from .a_fleet import NOW, Node, node, session

if TYPE_CHECKING:
    from mainspring.storage.engine import Operation

FUNCTIONS = [b"f", b"g"]
ENDS = [event for event in Event if State.LEASED in rules.sources(event) and event not in {Event.ASSIGN, Event.LOSE}]


class Busy:
    """One node and the answers that it received."""

    def __init__(self, one: Node, chance: random.Random, job_ids: list[int]) -> None:
        self.one = one
        self.chance = chance
        self.job_ids = job_ids
        self.held: dict[int, Job] = {}
        self.ends: Counter[int] = Counter()
        """How often each job has ended, less how often it was redriven."""

    async def step(self) -> None:
        """Commit a group of a few operations, and record the answers."""
        chance = self.chance
        makers = chance.choices(
            [self.submit, self.settle, self.claim, self.wake, self.cancel, self.redrive, self.wait, self.leave],
            [8, 8, 6, 1, 1, 1, 1, 1],
            k=chance.randrange(1, 5),
        )
        group = [maker() for maker in makers]
        outcomes = await self.one.group(*group)
        for operation, outcome in sorted(zip(group, outcomes, strict=True), key=lambda pair: pair[0].phase):
            self.note(operation, outcome)

    # ---- operations ----

    def pick(self, most: int) -> list[int]:
        return (
            [self.chance.choice(self.job_ids) for _ in range(self.chance.randrange(1, most))] if self.job_ids else [1]
        )

    def submit(self) -> Operation:
        return ops.Submit(
            [self.job() for _ in range(self.chance.randrange(1, 20))],
            self.one.term if self.chance.random() < 0.4 else 0,
        )

    def job(self) -> Job:
        chance = self.chance
        state = chance.choice([State.PENDING, State.PENDING, State.SCHEDULED, State.LEASED])
        return self.one.job(
            chance.choice(FUNCTIONS),
            state=state,
            unique=chance.choice([b"", b"%d" % chance.randrange(15)]),
            priority=chance.choice(list(Priority)),
            due_us=chance.randrange(1, 100) if state is State.SCHEDULED else 0,
            expires_us=chance.choice([0, 0, 0, 5]),
            options=Options(keep_unique=5e-6) if chance.random() < 0.2 else None,
            foreground=chance.random() < 0.3,
        )

    def settle(self) -> Operation:
        jobs = [self.held.pop(at) for at in self.chance.sample(sorted(self.held), len(self.held) // 2)]
        return ops.Settle([self.settlement(job) for job in jobs])

    def settlement(self, job: Job) -> Settlement:
        event = self.chance.choice([*ENDS, Event.SUCCEED, Event.SUCCEED])
        ended_us = NOW + self.chance.randrange(10) if rules.target(event).ended else 0
        return Settlement(job, event, job.attempt + 1, due_us=5, ended_us=ended_us)

    def claim(self) -> Operation:
        wants = [ops.ClaimRequest(name, self.chance.randrange(1, 20)) for name in FUNCTIONS]
        return ops.Claim(self.one.term, wants)

    def wake(self) -> Operation:
        return ops.Wake(NOW, 20)

    def cancel(self) -> Operation:
        return ops.Cancel(self.pick(2)[0], b"{}", NOW)

    def redrive(self) -> Operation:
        return ops.Redrive(self.pick(2)[0])

    def wait(self) -> Operation:
        return ops.Subscribe(self.one.term, self.pick(10))

    def leave(self) -> Operation:
        return ops.Unsubscribe(self.one.term, self.pick(10))

    # ---- outcomes ----

    def note(self, operation: Operation, outcome: Any) -> None:
        match operation:
            case ops.Submit(jobs=jobs):
                for job in jobs:
                    if job.id not in outcome:
                        self.job_ids.append(job.id)
                        if job.state == State.LEASED:
                            self.held[job.id] = job
            case ops.Settle(settlements=settlements):
                assert outcome == set(), "no other node settles a held job"
                self.ends.update(one.job.id for one in settlements if rules.target(one.event).ended)
            case ops.Claim():
                for job in (job for jobs in outcome for job in jobs):
                    assert job.id not in self.held
                    self.held[job.id] = job
            case ops.Cancel():
                if outcome.job is not None and outcome.before < State.LEASED:
                    self.ends[outcome.job.id] += 1
            case ops.Redrive(id=job_id):
                self.ends[job_id] -= outcome.redriven
            case ops.Wake():
                self.ends.update(job.id for job, _ in outcome.expired)
            case ops.Unsubscribe():
                for job_id in outcome:
                    self.held.pop(job_id, None)


async def race(database: str, seed: int, steps: int) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(node(database, f"n{at}", fold=0.1)) for at in range(3)]
        other = await stack.enter_async_context(session(database))
        job_ids: list[int] = []
        busy = [Busy(one, random.Random(seed * 10 + at), job_ids) for at, one in enumerate(nodes)]

        async def work(one: Busy) -> None:
            for _ in range(steps):
                await one.step()

        await asyncio.gather(*map(work, busy))
        jobs = await everything(nodes[0].engine, QueryJobs(limit=1_000_000))
        (counts,) = await nodes[0].group(ops.Count())
        recount = Counts()
        for job in jobs:
            recount.add(job.function, job.state, job.priority)
        assert counts == recount
        assert len({job.id for job in jobs}) == len(jobs)
        live = [(job.function, job.unique) for job in jobs if job.unique and not State(job.state).ended]
        assert len(set(live)) == len(live), "one live job per unique"
        held = {job.id: job.term for job in jobs if State(job.state).held}
        assert held == {job_id: one.one.term for one in busy for job_id in one.held}
        ends: Counter[int] = Counter()
        for one in busy:
            ends.update(one.ends)
        assert {job_id for job_id, number in ends.items() if number} == {
            job.id for job in jobs if State(job.state).ended
        }
        assert set(ends.values()) <= {0, 1}, "each end was notified once"
        lost = "SELECT count(*) FROM waits LEFT JOIN jobs ON id = job_id WHERE waited IS NOT true"
        assert await other.fetchval(lost) == 0, "a settlement finds all waiting clients"


def test_a_job_that_is_released_during_its_cancel_is_cancelled(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with node(database, "n1") as first, node(database, "n2") as second:
            job = second.job(state=State.LEASED)
            await second.group(second.submit(job))
            back = ops.Settle([Settlement(job, Event.RELEASE, 0)])

            async def look_up(*args: Any) -> dict[int, Job]:
                """Look after the statement that found the job held; it waits by then."""
                monkeypatch.setattr(changing, "look_up", lists.look_up)
                assert await second.group(back) == [set()]
                return await lists.look_up(*args)

            monkeypatch.setattr(changing, "look_up", look_up)
            (cancelled,) = await first.group(ops.Cancel(job.id, b"{}", NOW))
            assert (cancelled.before, cancelled.job.state) == (State.PENDING, State.CANCELLED)
            assert await first.states(job) == [State.CANCELLED]
            assert await first.counts() == {(b"f", State.CANCELLED, 1): 1}

    asyncio.run(check())


@pytest.mark.parametrize("seed", range(2))
def test_each_answer_stays_true(database: str, seed: int) -> None:
    asyncio.run(race(database, seed, 100))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 120))
def test_each_answer_stays_true_for_long(database: str, seed: int) -> None:
    asyncio.run(race(database, seed, 1000))
