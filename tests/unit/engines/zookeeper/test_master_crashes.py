"""A master that ends between any two steps: the next one takes over, and each task ends and is published once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.tree import Create, Done, Refused, Write
from mainspring.jobs.model import State
from mainspring.jobs.store import Assign

from .a_master import Fleet, Member, eventually, fleet, run

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from mainspring.engines.zookeeper.tree import Change
    from mainspring.jobs.model import Job

STEPS = 200
"""More steps than the scenario has."""


class Publications:
    """Counts the completions and publications of each job."""

    def __init__(self, nodes: Fleet) -> None:
        self.completed: Counter[int] = Counter()
        self.published: Counter[int] = Counter()
        apply = nodes.content.apply

        def noted(changes: Sequence[Change], session: int = 0) -> Done | Refused:
            outcome = apply(changes, session)
            for change in changes if isinstance(outcome, Done) else ():
                if not isinstance(change, Create | Write) or not change.data:
                    continue
                if change.path.startswith(f"{paths.COMPLETED}/"):
                    self.completed[records.decode(change.data)["id"]] += 1
                if change.path.startswith(f"{paths.RESULTS}/") and "state" in (record := records.decode(change.data)):
                    self.published[record["id"]] += 1
            return outcome

        nodes.content.apply = noted  # type: ignore[method-assign]


async def work(member: Member) -> None:
    """Claim all jobs and complete them."""
    while jobs := await member.claim(limit=3):
        await member.succeed(*jobs)


async def create_tasks(nodes: Fleet) -> list[Job]:
    """Create tasks in each place where a master may find them, some of them with an ended worker."""
    client, lost = await nodes.join("client", is_candidate=False), await nodes.join("lost", is_candidate=False)
    pending = [await client.submitted(unique=b"p%d" % number) for number in range(4)]
    held = [await lost.held(unique=b"h%d" % number) for number in range(3)]
    await lost.one(Assign([held[0]]))
    done = [await lost.held(unique=b"d%d" % number) for number in range(2)]
    waited = await client.submitted(unique=b"w", waiter=client.session.term)
    await lost.session.meet([waited.id])
    claimed = await client.assign_to(waited, lost)
    assert await lost.succeed(*done, claimed) == set()
    await lost.kill()
    return [*pending, *held, *done, waited]


class Crash:
    """Kills a member before its n-th step, or after its n-th batch."""

    def __init__(self, member: Member, at: int, *, after: bool) -> None:
        self.member = member
        self.left = at
        self.happened = False
        tree = member.tree
        if after:
            tree.after = lambda _changes, _outcome: self._step()
            return
        for name in ("get", "get_many", "children", "commit"):
            setattr(tree, name, self._stepping(getattr(tree, name)))

    def _stepping(self, ask: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def stepping(what: Any, *more: Any) -> Any:
            if not isinstance(what, str) or what.count("/") != 2:  # a list of a bucket is no step
                self._step()
            return await ask(what, *more)

        return stepping

    def _step(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.happened = True
            self.member.tree.kill()
            self.member.fleet.content.expire(self.member.tree.session)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_master_may_end_at_any_step(*, after: bool, beside: bool) -> None:
    """With ``beside``, the next master is running already, and has tasks of the first one."""

    async def check(at: int) -> bool:
        async with fleet() as nodes:
            counted = Publications(nodes)
            jobs = await create_tasks(nodes)
            first = await nodes.join("first")
            crash = Crash(first, at, after=after)

            async def done_by(member: Member) -> bool:
                await work(member)
                return _all_published(nodes, jobs)

            working = [asyncio.create_task(eventually(lambda: done_by(first)))]
            if beside:
                await eventually(lambda: crash.happened or nodes.content.read(paths.MASTER) is not None)
                second = await nodes.join("second")
                working.append(asyncio.create_task(eventually(lambda: done_by(second))))
            await eventually(lambda: crash.happened or all(task.done() for task in working))
            working[0].cancel()
            first.running.cancel()
            nodes.members.remove(first)
            nodes.content.expire(first.tree.session)
            if not beside:
                second = await nodes.join("second")
            await eventually(lambda: done_by(second))
            await asyncio.gather(first.running, *working, return_exceptions=True)
            assert counted.completed == counted.published == Counter({job.id: 1 for job in jobs})
            assert await second.counts() == {(b"f", State.SUCCEEDED, 1): len(jobs)}
            for root in (paths.PENDING, paths.RUNNING, paths.COMPLETED, paths.NAMES):
                assert nodes.tasks(root) == []
            await eventually(lambda: set(nodes.content.names(paths.QUEUES) or ()) == {"client-1", second.session.who})
            return crash.happened

    at = 1
    while run(check(at)):
        at += 1
    assert 8 < at < STEPS


def _all_published(nodes: Fleet, jobs: list[Job]) -> bool:
    owners = {1: "client", 2: "lost"}
    return all(nodes.state(job, owners[job.id // 10**12]) is State.SUCCEEDED for job in jobs)
