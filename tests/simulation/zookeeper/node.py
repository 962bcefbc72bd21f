"""A node of the fleet: the real engine, and an actor that commits, claims, works and renews its term as a node does."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.engine import ZookeeperEngine
from mainspring.errors import StoreBrokenError, StoreCorruptError, StoreError, StoreFencedError
from mainspring.events import Abandoned, Pending
from mainspring.ids import NodeId, job_ids
from mainspring.jobs import store as ops
from mainspring.jobs.rules import Event, Settlement
from mainspring.nodes.model import NodeRow
from mainspring.storage.engine import DEFERRED
from tests.zookeeper.driving import SLICES

from .ensemble import Way
from .loop import OWNER

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mainspring.events import Message
    from mainspring.jobs.model import Job
    from mainspring.storage.commit_queue import OperationWithCallbacks as Entry
    from mainspring.storage.engine import Answer, Committed, Operation

    from .world import World

CLAIM_SECONDS = 6.0
"""Seconds after which a claim that is not answered never will be: more than `claiming.CLAIM_TIMEOUT` and slow requests."""
RETRY_DELAY = 0.5
"""Seconds between attempts to reach the store."""
ENDS = (Event.SUCCEED,) * 5 + (Event.RETRY, Event.RELEASE, Event.SNOOZE, Event.FAIL, Event.LOSE)
FUNCTIONS = (b"f", b"g")


class Engine(ZookeeperEngine):
    """The real engine, and the claims that it has not answered."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._claims: dict[tuple[int, int], float] = {}
        """The loop's time of each unanswered claim, by the numbers of its group and of its place there."""
        self._group_number = 0

    @property
    def owes_answer(self) -> bool:
        """Return whether a claim waits for longer than any master takes."""
        late = asyncio.get_running_loop().time() - CLAIM_SECONDS
        return any(since < late for since in self._claims.values())

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        self._group_number += 1
        number, now = self._group_number, asyncio.get_running_loop().time()
        self._claims |= {(number, at): now for at, one in enumerate(group) if isinstance(one, ops.Claim)}

        def done(outcomes: Sequence[Any] | StoreError) -> None:
            for at in range(len(group)):
                if isinstance(outcomes, StoreError) or outcomes[at] is not DEFERRED:
                    self._claims.pop((number, at), None)
            committed(outcomes)

        def answered(place: int, outcome: Any) -> None:
            self._claims.pop((number, place), None)
            answer(place, outcome)

        super().commit(group, done, answered)


class Node:
    """One process of a node."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.chance = world.chance
        self.name = name
        self.way = Way(world.content, world.chance, world.faults, session_timeout=world.session, lag=world.lag)
        self.way.failure_rate = world.loss
        self.way.message_loss = world.message_loss
        self.way.event_loss = world.event_loss
        self.way.sync_lag = world.sync_lag
        self.engine = Engine(lambda: self.way, open_timeout=None, slices=SLICES)
        self.engine.listen(self._receive)
        self.term = 0
        """The node's term; 0 if it has none at the moment."""
        self.held: dict[int, Job] = {}
        self._last_tokens: dict[int, bytes] = {}
        """The token of the last settlement of each job."""
        self.limit = world.chance.choice((1, 3, 10))
        self.dead = False
        self._put: deque[tuple[int, Entry]] = deque()
        self._under_way = False
        self._any = asyncio.Event()
        self._claim_now = asyncio.Event()
        self._fenced = asyncio.Event()
        self._counter = 0
        self.start(self._live())

    @property
    def who(self) -> str:
        return paths.worker_name(self.name, self.term)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that ends with this process."""
        token = OWNER.set(self)
        try:
            task = asyncio.get_running_loop().create_task(work)
        finally:
            OWNER.reset(token)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.world.failed(task.exception())

    def kill(self) -> int:
        """End the process as SIGKILL does. Return its session, which continues until its timeout."""
        self.dead = True
        session = self.way.session
        self.way.kill()
        self.world.loop.kill(self)
        return session

    # ---- its term ----

    async def _live(self) -> None:
        try:
            opened = await self.engine.open(NodeId(self.name), self.world.loop.call_soon)
        except StoreError:
            self.world.kill(self.name)  # the process ends and is restarted
            return
        self._begin(int(opened.term))
        for work in (self._commit(), self._keep(), self._claim()):
            self.start(work)

    def _begin(self, term: int) -> None:
        self.term = term
        self.new_id = job_ids(term)  # type: ignore[arg-type]
        self._fenced.clear()
        self._claim_now.set()

    async def _keep(self) -> None:
        """Send heartbeats, and begin another term if the last one has ended."""
        while True:
            try:
                if self._fenced.is_set():
                    await self._renew()
                self._counter += 1
                await self.engine.beat(NodeRow(term=self.term, name=self.name, counter=self._counter))
                if self.chance.random() < 0.2:
                    lost = await self.engine.abandoned()
                    if lost:
                        self.put(ops.Recover(self.term, lost), _ignore, _ignore)
            except StoreFencedError:
                self._fence()
                continue
            except StoreError:
                await asyncio.sleep(RETRY_DELAY)
                continue
            try:
                await asyncio.wait_for(self._fenced.wait(), self.world.session * 0.3)
            except TimeoutError:
                pass

    def _fence(self) -> None:
        self.held.clear()
        self._fenced.set()

    async def _renew(self) -> None:
        before = self.term
        await self.engine.end(before)
        opened = await self.engine.open(NodeId(self.name), self.world.loop.call_soon)
        self._begin(int(opened.term))
        self.put(ops.Recover(self.term, [before]), _ignore, _ignore)

    # ---- committing ----

    @property
    def is_idle(self) -> bool:
        """Return whether it has a term, and nothing to commit."""
        return bool(self.term) and not self._put and not self._under_way and not self._fenced.is_set()

    def put(self, operation: Operation, done: Callable[[Any], None], failed: Callable[[StoreError], None]) -> None:
        """Queue an operation for the next commit."""
        self._put.append((self.term, (operation, done, failed)))
        self._any.set()

    async def _commit(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._any.wait()
            self._any.clear()
            while self._put:
                group: list[Entry] = []
                for _ in range(min(len(self._put), self.chance.choice((1, 2, 8)))):
                    term, entry = self._put.popleft()
                    if term == self.term or type(entry[0]) is ops.Settle:
                        group.append(entry)
                    else:
                        entry[2](StoreFencedError("it belongs to another term"))
                answer: asyncio.Future[Sequence[Any] | StoreError] = loop.create_future()
                self._under_way = True
                self.engine.commit(
                    [entry[0] for entry in group],
                    answer.set_result,
                    lambda place, outcome, group=group: self._call_back(group[place], outcome),  # type: ignore[misc]
                )
                self._answer(group, await answer)
                self._under_way = False
                if self._fenced.is_set():
                    await asyncio.sleep(0.1)

    def _answer(self, group: Sequence[Entry], outcomes: Sequence[Any] | StoreError) -> None:
        each = [outcomes] * len(group) if isinstance(outcomes, StoreError) else outcomes
        for entry, outcome in zip(group, each, strict=True):
            if isinstance(outcome, StoreBrokenError | StoreCorruptError):
                self.world.failed(outcome)
            if isinstance(outcome, StoreFencedError):
                self._fence()
            if outcome is not DEFERRED:
                self._call_back(entry, outcome)

    @staticmethod
    def _call_back(entry: Entry, outcome: Any) -> None:
        _, done, failed = entry
        if isinstance(outcome, StoreError):
            failed(outcome)
        else:
            done(outcome)

    # ---- work ----

    def _receive(self, message: Message) -> None:
        if isinstance(message, Pending):
            self._claim_now.set()
        elif isinstance(message, Abandoned):
            self.put(ops.Recover(self.term, message.terms), _ignore, _ignore)

    async def _claim(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._claim_now.wait()
            self._claim_now.clear()
            room = self.limit - len(self.held)
            if room <= 0 or not self.term or self._fenced.is_set():
                await asyncio.sleep(0.3)
                self._claim_now.set()
                continue
            answer: asyncio.Future[list[list[Job]] | None] = loop.create_future()

            def done(jobs: list[list[Job]], answer: asyncio.Future[Any] = answer) -> None:
                if not answer.done():
                    answer.set_result(jobs)

            def failed(_: StoreError, answer: asyncio.Future[Any] = answer) -> None:
                if not answer.done():
                    answer.set_result(None)

            term = self.term
            self.put(ops.Claim(term, [ops.ClaimRequest(function, room) for function in FUNCTIONS]), done, failed)
            jobs = await answer
            if jobs is None:
                await asyncio.sleep(0.2)
                self._claim_now.set()
                continue
            if term == self.term and not self._fenced.is_set():
                for job in [job for some in jobs for job in some]:
                    self._check_claimed(job)
                    self.hold(job)
            if any(jobs):
                self._claim_now.set()
            else:
                loop.call_later(5.0, self._claim_now.set)  # the message may be lost

    def _check_claimed(self, job: Job) -> None:
        self.check_held(job)
        # A released job may be assigned again before this node receives the outcome of the release.
        if job.id in self.held and self._last_tokens.get(job.id) not in self.world.history.tokens:
            self.world.history.fault(f"job {job.id} is handed out twice by {self.who}")

    def check_held(self, job: Job) -> None:
        """Check that the node holds an assigned job, unless the node's end is not detected yet."""
        content = self.world.content
        if content.read(paths.worker(self.who)) is None:
            return
        task = paths.task_name(job.function, job.unique, job.id)
        node = content.read(paths.running(task))
        record = {} if node is None else records.decode(node.data)
        if (record.get("id"), record.get("term")) != (job.id, self.term) or job.term != self.term:
            self.world.history.fault(f"job {job.id} is handed out by {self.who}, which does not have it")

    def hold(self, job: Job) -> None:
        """Start the work on a job."""
        self.held[job.id] = job
        self.start(self._work(job))

    async def _work(self, job: Job) -> None:
        chance, world = self.chance, self.world
        await asyncio.sleep(chance.expovariate(1 / world.pace))
        is_late = chance.random() < 0.2  # it continues although its node has released its jobs
        if chance.random() < 0.4 and self.held.get(job.id) is job:
            self.put(ops.Assign([job]), _ignore, _ignore)
            await asyncio.sleep(chance.expovariate(1 / world.pace))
        if self.held.get(job.id) is not job and not is_late:
            return
        event = Event.SUCCEED if world.calm else chance.choice(ENDS)
        settlement = self.settlement(job, event)
        self._last_tokens[job.id] = settlement.result or settlement.error
        world.settle(self, settlement, lambda: self._over(job))

    def settlement(self, job: Job, event: Event) -> Settlement:
        """Return a settlement with a unique token."""
        now_us, token = self.world.now_us(), self.world.token(job)
        counted = job.attempt + (event not in {Event.RELEASE, Event.SNOOZE})
        return Settlement(
            job,
            event,
            counted,
            due_us=now_us + self.chance.randrange(3_000_000) if event in {Event.RETRY, Event.SNOOZE} else 0,
            started_us=now_us,
            ended_us=now_us if event in {Event.SUCCEED, Event.FAIL} else 0,
            result=token if event is Event.SUCCEED else b"",
            error=b"" if event is Event.SUCCEED else token,
        )

    def _over(self, job: Job) -> None:
        if self.held.get(job.id) is job:
            del self.held[job.id]
        self._claim_now.set()


def _ignore(_: object) -> None:
    pass
