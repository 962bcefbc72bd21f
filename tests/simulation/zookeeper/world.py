"""A fleet on one ensemble, its clients, and faults of every kind."""

from __future__ import annotations

import asyncio
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Any

from mainspring.engines.zookeeper import engine, paths, records
from mainspring.engines.zookeeper.tree import Delete
from mainspring.errors import StoreError, StoreFencedError, StoreUnavailableError
from mainspring.jobs import store as ops
from mainspring.jobs.model import NO_UNIQUE, Counts, Job, Options, Priority, State
from mainspring.queries import QueryJobs
from tests.conformance.suite.paging import everything
from tests.progress import Position, Progress, why_waiting
from tests.zookeeper.memory import MemoryTree

from .ensemble import Ensemble
from .history import Broken, History
from .node import FUNCTIONS, Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.jobs.rules import Settlement
    from mainspring.storage.engine import Operation

    from .loop import VirtualLoop

START_US = 1_700_000_000_000_000
CALM_SECONDS = 120.0
"""Seconds without faults after which every job must have ended."""
FAULT_AFTERMATH = 8.0
"""Seconds after which no effect of an earlier fault is in flight."""
UNIQUES = (NO_UNIQUE, NO_UNIQUE, b"u", b"v", b"w")


class Answer(Enum):
    """The answer to a request, as far as it was received."""

    NOTHING = "nothing"
    DONE = "done"
    REFUSED = "refused"


class World:
    """One run."""

    message_loss = 0.0
    """The probability that a message between nodes is lost."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self.chance = chance = Random(seed)
        self.loop = loop
        self.history = History()
        self.content = Ensemble(self.history, self.now_us)
        self.calm = False
        self.session = chance.choice((2.0, 4.0, 10.0))
        self.lag = chance.choice((0.002, 0.02, 0.2))
        self.pace = chance.choice((0.05, 0.5, 2.0))
        self.loss = chance.choice((0.0, 0.02, 0.1))
        self.fault_interval = chance.choice((0.3, 1.0, 3.0))
        """Mean number of seconds between faults."""
        self.faults = faults = Random(f"faults of {seed}")
        self.event_loss = faults.choice((0.0, 0.0, 0.1, 0.5))
        """The probability that an event of a watch is lost, also in the time without other faults."""
        self.sync_lag = min(faults.choice((0.0, 10.0)) * self.lag, self.session / 20)
        """Mean number of seconds that a sync takes more than a read."""
        self.nodes: dict[str, Node | None] = {f"n{number}": None for number in range(1, chance.randint(2, 4) + 1)}
        """The nodes by name; None while the process is down."""
        self.answers: dict[bytes, Answer] = {}
        """The answer to each settlement that its node has received, by token."""
        self.submitted: dict[int, Answer] = {}
        self._ends: dict[bytes, tuple[int, State]] = {}
        """Tokens of settlements that end a job."""
        self._counted = 0
        self._failures: list[BaseException] = []

    def now_us(self) -> int:
        return START_US + round(self.loop.time() * 1_000_000)

    def failed(self, error: BaseException | None) -> None:
        """Record an unexpected error."""
        assert error is not None
        self._failures.append(error)

    def check(self) -> None:
        """Raise the errors and violations found so far."""
        for error in self._failures:
            raise error
        if self.history.broken:
            raise Broken("; ".join(self.history.broken[:3]))

    # ---- the run ----

    async def run(self, seconds: float) -> None:
        """Run with faults, then without."""
        first = MemoryTree(self.content)
        await first.open()
        await engine.prepare_tree(first)
        await first.close()
        for name in self.nodes:
            self._begin(name)
        until = self.loop.time() + seconds
        clients, disturbed = self.chance.uniform(0.05, 0.5), self.loop.time() + 1.0
        while self.loop.time() < until:
            await asyncio.sleep(self.chance.expovariate(1 / clients))
            self.check()
            self._act()
            if self.loop.time() > disturbed:
                self._disturb()
                disturbed = self.loop.time() + self.chance.expovariate(1 / self.fault_interval)
        await self._run_without_faults()

    async def _run_without_faults(self) -> None:
        self.calm = True
        for name, node in self.nodes.items():
            if node is None:
                self._begin(name)
            else:
                node.way.heal()
        for one in self.nodes.values():
            assert one is not None
            one.way.failure_rate = 0.0
        await asyncio.sleep(FAULT_AFTERMATH)
        until, progress = self.loop.time() + CALM_SECONDS, Progress()
        while left := self._left():
            stuck = progress.stuck(left, self.loop.time())
            if stuck:
                raise Broken(f"never ends: {stuck}")
            await asyncio.sleep(0.5)
            self.check()
            if self.loop.time() > until:
                raise Broken(f"never ends: {list(left)[:5]}")
        await self._check_end()
        self.check()
        await asyncio.gather(*(node.engine.close() for node in self.nodes.values() if node is not None))

    # ---- actions of clients ----

    def token(self, job: Job) -> bytes:
        """Return a unique token for a settlement."""
        self._counted += 1
        return b"%d by %d" % (job.id, self._counted)

    def _node(self) -> Node | None:
        alive = [node for node in self.nodes.values() if node is not None and node.term]
        return self.chance.choice(alive) if alive else None

    def _act(self) -> None:
        node = self._node()
        if node is None:
            return
        chance, number = self.chance, self.chance.random()
        stored = list(self.history.stored)
        some = chance.choice(stored) if stored else 0
        if number < 0.75 or not some:
            self._submit(node)
        elif number < 0.82:
            node.put(ops.Cancel(some, b"", self.now_us()), _ignore, _ignore)
        elif number < 0.86:
            node.put(ops.Redrive(some), _ignore, _ignore)
        elif number < 0.92:
            node.put(ops.Subscribe(node.term, [some]), _ignore, _ignore)
        elif number < 0.94:
            node.put(ops.Unsubscribe(node.term, [some]), _ignore, _ignore)
        elif number < 0.97:
            node.put(ops.Find([some]), _ignore, _ignore)
        else:
            node.put(ops.Wake(self.now_us()), _ignore, _ignore)

    def _submit(self, node: Node) -> None:
        chance = self.chance
        jobs = [self._job(node) for _ in range(chance.choice((1, 1, 1, 2, 5)))]
        for job in jobs:
            self.submitted[job.id] = Answer.NOTHING

        def done(found: dict[int, ops.Found]) -> None:
            for job in jobs:
                if job.id in found:
                    self.submitted[job.id] = Answer.REFUSED
                    if found[job.id].id not in self.history.stored:
                        self.history.fault(f"job {job.id} joins {found[job.id].id}, which was never stored")
                    continue
                self.submitted[job.id] = Answer.DONE
                if job.id not in self.history.stored:
                    self.history.fault(f"job {job.id} is acknowledged and not stored")
                if job.state == State.LEASED and job.term == node.term and not node.dead:
                    node.hold(job)

        def failed(error: StoreError) -> None:
            if isinstance(error, StoreFencedError) and len(jobs) == 1:
                self.submitted[jobs[0].id] = Answer.REFUSED

        waiter = node.term if chance.random() < 0.3 else 0
        node.put(ops.Submit(jobs, waiter), done, failed)

    def _job(self, node: Node) -> Job:
        chance, now_us = self.chance, self.now_us()
        state = chance.choice((State.PENDING,) * 4 + (State.SCHEDULED, State.LEASED))
        return Job(
            node.new_id(),
            chance.choice(FUNCTIONS),
            b"p",
            unique=chance.choice(UNIQUES),
            priority=int(chance.choice(list(Priority))),
            state=int(state),
            created_us=now_us,
            due_us=now_us + chance.randrange(6_000_000) if state is State.SCHEDULED else 0,
            expires_us=now_us + chance.randrange(10_000_000) if chance.random() < 0.1 else 0,
            options=Options(keep_unique=2.0) if chance.random() < 0.2 else None,
            term=node.term if state is State.LEASED else 0,
            input_size=1,
        )

    def settle(self, node: Node, settlement: Settlement, over: Callable[[], None]) -> None:
        """Settle a job and record the answer."""
        token = settlement.result or settlement.error
        self.answers[token] = Answer.NOTHING
        job_id = settlement.job.id

        def done(stale: set[int]) -> None:
            self.answers[token] = Answer.REFUSED if job_id in stale else Answer.DONE
            if (token in self.history.tokens) == (job_id in stale):
                self.history.fault(f"the answer to {token!r} is wrong: {self.answers[token]}")
            over()

        def failed(error: StoreError) -> None:
            if isinstance(error, StoreFencedError):
                self.answers[token] = Answer.REFUSED
            over()

        node.put(ops.Settle([settlement]), done, failed)

    # ---- faults ----

    def _begin(self, name: str) -> None:
        if not self.nodes[name]:
            self.nodes[name] = Node(self, name)

    def kill(self, name: str) -> None:
        """End a node's process; another one starts some time later."""
        node = self.nodes[name]
        if node is None:
            return
        self.nodes[name] = None
        session = node.kill()
        # Its session lasts until its timeout; the next process does not wait for that.
        self.loop.call_later(self.session * self.chance.random(), self.content.expire, session)
        self.loop.call_later(self.chance.expovariate(1 / self.session), self._begin, name)

    def _cut(self, node: Node) -> None:
        way, session = node.way, node.way.session
        if not way.is_connected or not session:
            return
        way.cut()
        self.loop.call_later(self.session, lambda: None if way.is_connected else self.content.expire(session))
        self.loop.call_later(self.chance.expovariate(1 / self.session), way.heal)

    def _disturb(self) -> None:
        number = self.chance.random()
        node = self._node()
        if node is None:
            return
        if number < 0.25:
            self._cut(node)
        elif number < 0.35:
            node.way.blink()
        elif number < 0.45:
            self.kill(node.name)
        elif number < 0.55:
            node.way.expire()
        elif number < 0.75:
            self._depose()
        elif number < 0.8:
            for name in self.nodes:
                self.kill(name)
        elif number < 0.9:
            self._kill_master()
        else:
            other = self._node()
            if other is not None and other is not node:
                node.start(self._end(node, other.term))

    def _master(self) -> str | None:
        node = self.content.read(paths.MASTER)
        return None if node is None else str(records.decode(node.data)["worker"]).rpartition("-")[0]

    def _depose(self) -> None:
        """Delete the master's node of the tree, so that another master is elected; the old one may detect it late."""
        name = self._master()
        if name is None:
            return
        node = self.nodes[name]
        if node is not None and self.chance.random() < 0.8:
            self._cut(node)
        self.content.apply([Delete(paths.MASTER)])

    def _kill_master(self) -> None:
        name = self._master()
        if name is not None:
            self.kill(name)

    async def _end(self, node: Node, term: int) -> None:
        """Let a node end the term of another one, which is alive."""
        try:
            await node.engine.end(term)
        except StoreError:
            return
        node.put(ops.Recover(node.term, [term]), _ignore, _ignore)

    # ---- the end ----

    def _left(self) -> dict[str, Position]:
        """Return the work that has not ended yet."""
        content = self.content
        left = {}
        for path in content.paths():
            parts = path.split("/")
            root, node = f"/{parts[1]}", content.read(path)
            assert node is not None
            if len(parts) == 4 and root in {paths.PENDING, paths.RUNNING, paths.COMPLETED, paths.DELAYED}:
                due_in = (records.decode(node.data).get("due_us", 0) - self.now_us()) / 1e6
                why = why_waiting("scheduled", due_in=due_in) if root == paths.DELAYED else ""
                left[path] = Position(node.data, why)
            elif (len(parts) == 4 and root == paths.NAMES and "id" in records.decode(node.data)) or (
                root == paths.QUEUES
                and len(parts) > 2
                and (len(parts) == 4 or content.read(paths.worker(parts[2])) is None)
            ):
                left[path] = Position(node.data)
        for name, one in self.nodes.items():
            if one is None or not one.is_idle:
                left[f"node {name}"] = Position("busy")
            if one is not None and one.engine.owes_answer:
                left[f"a claim of node {name}"] = Position("unanswered")
        return left

    async def _ask(self, node: Node, operation: Operation) -> Any:
        while True:
            answer = self.loop.create_future()
            node.put(operation, answer.set_result, answer.set_exception)
            try:
                return await asyncio.wait_for(answer, CALM_SECONDS)
            except StoreFencedError:
                await asyncio.sleep(1.0)  # the node has just begun another term

    async def _list(self, node: Node) -> list[Job]:
        while True:
            try:
                return await asyncio.wait_for(everything(node.engine, QueryJobs(limit=1_000_000)), CALM_SECONDS)
            except StoreUnavailableError:
                await asyncio.sleep(1.0)  # the node has just begun another term

    async def _check_end(self) -> None:
        history = self.history
        for job_id, answer in self.submitted.items():
            if answer is Answer.REFUSED and job_id in history.stored:
                history.fault(f"job {job_id} was refused and is stored")
            if answer is Answer.DONE and job_id not in history.ended:
                history.fault(f"job {job_id} was acknowledged and has not ended")
        for job_id in history.stored.keys() - history.published - history.dropped:
            history.fault(f"the outcome of job {job_id} is not published")
        for token, answer in self.answers.items():
            if (token in history.tokens) != (answer is Answer.DONE) and answer is not Answer.NOTHING:
                history.fault(f"{token!r} was {answer.value}, and that is wrong")
        node = self._node()
        assert node is not None
        counts = await self._ask(node, ops.Count())
        jobs = await self._list(node)
        recount = Counts()
        for job in jobs:
            recount.add(job.function, job.state, job.priority)
            if job.id not in history.ended or job.state != history.state(job.id):
                history.fault(f"job {job.id} is listed as {job.state}")
        if counts != recount:
            history.fault(f"the counts are {counts}, and there are {dict(recount)}")
        if {job.id for job in jobs} != set(history.stored) - history.dropped:
            history.fault("not all jobs are listed")


def _ignore(_: object) -> None:
    pass
