"""A store on ZooKeeper: one session for each node, which is a worker of the recipe and may be its master.

The engine creates the roots of an empty tree, and the next term of its node. Each kind of operation has a handler.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from mainspring.access.audit import RecordActs
from mainspring.engines.zookeeper import (
    changing,
    claiming,
    cluster,
    committer,
    paths,
    queries,
    records,
    recovering,
    schedule_places,
    sessions,
    settling,
    submitting,
)
from mainspring.engines.zookeeper.claiming import OpenClaim
from mainspring.engines.zookeeper.cluster import Relay
from mainspring.engines.zookeeper.master import Master
from mainspring.engines.zookeeper.queries import READERS
from mainspring.engines.zookeeper.recovering import abandoned
from mainspring.engines.zookeeper.sessions import Handlers, Reader, Session, Slice
from mainspring.engines.zookeeper.tree import Create, Done, RefreshedTree, SessionEndedError, UnknownOutcomeError, Write
from mainspring.errors import (
    SettingsError,
    StoreBrokenError,
    StoreError,
    StoreFencedError,
    StoreForeignError,
    StoreUnavailableError,
)
from mainspring.events import Message, Pending
from mainspring.features import Feature
from mainspring.ids import NodeId, Term
from mainspring.jobs.store import Settle, Submit
from mainspring.nodes.model import NodeRow
from mainspring.quantities import format_duration
from mainspring.storage.engine import DEFERRED, Opened, Phase, Probe, plan_of, unknown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from mainspring.engines.zookeeper.tree import Tree
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.storage.engine import Answer, Answered, Budget, Committed, Operation, Query

LAYOUT_VERSION: Final = 1
"""The version of the tree's layout; a node refuses a tree of a newer one."""


async def prepare_tree(tree: Tree) -> bool:
    """Create all missing roots and buckets, and return whether there were any.

    Several nodes may do so at once, and may stop anywhere. Raises StoreForeignError if a newer version has the tree.
    """
    node = await tree.get(paths.LAYOUT)
    if node is not None:
        version = records.decode(node.data).get("version", 0)
        if version > LAYOUT_VERSION:
            raise StoreForeignError(
                f"the tree has layout {version}, and this version of Mainspring supports {LAYOUT_VERSION}: upgrade this node"
            )
        return False
    for root in (*paths.ROOTS, *schedule_places.ROOTS):
        await tree.commit([Create(root)])  # refused if it exists
    for root in paths.BUCKETED:
        while missing := sorted(set(paths.BUCKETS).difference(await tree.children(root) or ())):
            await tree.commit([Create(f"{root}/{bucket}") for bucket in missing])
    await tree.commit([Create(paths.LAYOUT, records.encode({"version": LAYOUT_VERSION}))])
    return True


async def migrate_tree(tree: Tree) -> list[int]:
    """Open a tree, create the roots of an empty one, and close it; return the layout's version if it was empty.

    Raises StoreError.
    """
    try:
        await tree.open()
        return [LAYOUT_VERSION] if await prepare_tree(tree) else []
    finally:
        await tree.close()


async def next_term(tree: Tree, node: NodeId) -> int:
    """Start a node's next term: one multi creates its number, queue, journal and ephemeral node."""
    while True:
        counter = await tree.get(paths.TERMS)
        assert counter is not None, "the roots are there"
        term = int(records.decode(counter.data).get("last", 0)) + 1
        who = paths.worker_name(node, term)
        row = NodeRow(term=term, name=node, counter=0)
        changes = [
            Write(paths.TERMS, records.encode({"last": term}), counter.version),
            Create(f"{paths.TERMS}/{term}", node.encode()),
            *(Create(path) for path in (paths.queue(who), paths.wants(who), paths.mail(who))),
            *committer.begin(who),
            Create(paths.worker(who), records.encode(row), ephemeral=True),
        ]
        try:
            outcome = await tree.commit(changes)
        except UnknownOutcomeError:
            if await _has_begun(tree, who):
                return term
            continue  # with another number: this one leaves at most a worker without tasks, which ends with its session
        if isinstance(outcome, Done):
            return term


async def _has_begun(tree: Tree, who: str) -> bool:
    """Return whether this session has created a worker. While the ensemble is away, it waits.

    The worker would live as long as the session: without the wait, an idle one might stay behind.
    """
    while True:
        try:
            await tree.sync()
            node = await tree.get(paths.worker(who))
        except (StoreUnavailableError, SessionEndedError):
            await asyncio.sleep(committer.RETRY_DELAY)  # the next session can read it as well
        else:
            return node is not None and node.owner == tree.session


async def _drop_acts(session: Session, operations: Sequence[RecordActs]) -> list[None]:
    """Keep no audit."""
    del session
    return [None] * len(operations)


async def _probe(session: Session, operations: Sequence[Probe]) -> list[None]:
    """Write the node's journal, as each batch does, with nothing else in it; see ``Probe``."""
    await session.write()
    return [None] * len(operations)


HANDLERS: Final[Handlers] = {
    **recovering.HANDLERS,
    **settling.HANDLERS,
    **submitting.HANDLERS,
    **changing.HANDLERS,
    **queries.HANDLERS,
    **claiming.HANDLERS,
    Probe: _probe,
    RecordActs: _drop_acts,
}

T = TypeVar("T")

log = structlog.get_logger("mainspring.zookeeper")

MAX_VALUE: Final = 480 * 1024
"""Bytes of a payload or a result: its record, in JSON and at worst twice as long, has to fit into one packet of about a
megabyte (``jute.maxbuffer``)."""
LEAVE_TIMEOUT: Final = 2.0
"""Seconds at the end to delete this node's row, so that other nodes need not wait for its lease."""
QUERY_TIMEOUT: Final = 5.0
"""Seconds for the answer to a query."""
RETRY_DELAY: Final = 0.5
"""Seconds between attempts to open while the ensemble does not answer."""
CONCURRENT_KINDS: Final = frozenset({Settle, Submit})
"""Kinds of operations that run concurrently if a group has no others: their entries share one multi."""


class ZookeeperEngine:
    """The store of one node: engine, relay and membership."""

    durable = True
    shared = True
    whole = False
    lacks = frozenset(Feature)
    max_value = MAX_VALUE
    step_secret = b""
    sessions = None

    def __init__(
        self,
        tree: Callable[[], Tree],
        *,
        lease: float = 0.0,
        open_timeout: float | None = 60.0,
        slices: Sequence[Slice] = (),
    ) -> None:
        """``tree`` creates the tree. `open` waits ``open_timeout`` seconds for an ensemble that is away; None: without a limit.

        ``lease`` is the node's lease in seconds: sessions must last at least as long.
        """
        self._slices = slices
        self._handlers = dict(HANDLERS)
        self._readers = dict(READERS)
        for one in slices:
            self._handlers |= one.handlers
            self._readers |= one.readers
        self._lease = lease
        self._make = tree
        self._open_timeout = open_timeout
        self._tree: Tree | None = None
        self._session: Session | None = None
        self._nodes: dict[int, str] = {}
        self._relay: Relay | None = None
        self._listener: Callable[[Message], None] = lambda _: None
        self._group: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # ---- opening ----

    async def open(
        self, node: NodeId, deliver: Callable[[Callable[[], None]], object], lifecycle: JobLifecycle | None = None
    ) -> Opened:
        """Connect, create the roots of an empty tree, and start the node's next term. A further call starts another term."""
        del deliver  # the engine runs on the node's own loop
        if self._tree is None:
            tree: Tree = RefreshedTree(self._make(), self._lease)
            self._tree = tree
            try:
                await self._patiently(tree.open)
                self._check_session(tree)
                await self._patiently(lambda: prepare_tree(tree))
                term = await self._patiently(lambda: next_term(tree, node))
            except BaseException:
                await self.close()
                raise
        else:
            tree = self._tree
            await self._end_session()
            term = await next_term(tree, node)
        self._nodes.update(await self._patiently(lambda: sessions.read_all(tree)))
        whose = partial(sessions.worker_of, tree, self._nodes)
        relay = self._relay = Relay(tree, paths.worker_name(node, term), whose, self._deliver)
        session = self._session = Session(
            tree,
            node,
            term,
            self._nodes,
            arrived=lambda function: self._deliver(Pending([function])),
            flush_progress=relay.flush_progress,
            lifecycle=lifecycle,
            slices=self._slices,
        )
        master = Master(session, relay.send)
        self._start_loop(session, relay.run(), "messages")
        self._start_loop(session, master.run(), "master")
        return Opened(Term(term), self._nodes)

    def _check_session(self, tree: Tree) -> None:
        """Refuse an ensemble that ends sessions before the node's lease is over."""
        granted = tree.session_timeout
        if granted < self._lease:
            raise SettingsError(
                f"the ensemble ends sessions after {format_duration(granted)} at the latest, and this node's lease is "
                f"{format_duration(self._lease)}: start it with --lease {format_duration(granted)}, or raise maxSessionTimeout"
            )
        if granted > self._lease:
            log.info(
                "the ensemble's sessions last longer than the lease: the death of a node is detected later",
                seconds=granted,
            )

    async def _patiently(self, step: Callable[[], Awaitable[T]]) -> T:
        """Run one step of the opening; retry it while the ensemble is away."""
        loop = asyncio.get_running_loop()
        until = None if self._open_timeout is None else loop.time() + self._open_timeout
        while True:
            try:
                return await step()
            except StoreUnavailableError as error:
                if until is not None and loop.time() > until:
                    raise
                log.warning("the ensemble cannot be reached yet", reason=str(error))
                await asyncio.sleep(RETRY_DELAY)

    def _start(
        self, work: Coroutine[Any, Any, None], name: str, ended: Callable[[asyncio.Task[None]], None] = lambda _: None
    ) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"zookeeper {name}")
        self._tasks.append(task)
        task.add_done_callback(self._ended)
        task.add_done_callback(ended)

    def _start_loop(self, session: Session, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start a task that lasts as long as the term. It ends with the term only; if it ends otherwise, so does the term.

        Without it the node would go on to look alive, and others would wait for it for ever.
        """

        def ended(_: asyncio.Task[None]) -> None:
            if self._session is session:
                session.committer.fence()

        self._start(work, name, ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task in self._tasks:
            self._tasks.remove(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a defect in the store's code", task=task.get_name(), exc_info=task.exception())

    def _deliver(self, message: Message) -> None:
        try:
            self._listener(message)
        except Exception:
            # The next messages have to arrive: delivery is best effort, and one of a newer version may not be understood.
            log.exception("a defect in the node's code: a message was dropped", kind=type(message).__name__)

    # ---- committing ----

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        """Run a group; ``committed`` is called with the outcomes of all operations. While the store is away, that waits."""
        assert self._group is None, "one group at a time"
        for operation in group:
            if type(operation) not in self._handlers:  # limits, pauses and keys of functions among it
                raise TypeError(f"ZooKeeper cannot do {type(operation).__name__}: it has no handler for it")
        if self._session is None:
            committed(StoreFencedError("the last term has ended, and the next has not started yet"))
            return
        self._group = asyncio.get_running_loop().create_task(self._run(self._session, group, committed, answer))

    async def _run(self, session: Session, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        outcomes: list[Any] | StoreError
        try:
            outcomes = await handle(self._handlers, session, group, answer)
        except StoreError as error:
            outcomes = error
        except Exception as error:  # noqa: BLE001 - without an answer, the node would wait for this group for ever
            outcomes = StoreBrokenError(f"a defect in the store's code: the outcome of a group is unknown: {error!r}")
            outcomes.__cause__ = error
        self._group = None
        committed(outcomes)
        del outcomes  # an error's traceback has this frame: together they would keep the group until a collection

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        """Answer a query, concurrently with the groups, with a result or an error."""
        reader = self._readers.get(type(query))
        if reader is None:
            raise unknown("ZooKeeper", [type(query)])
        if self._session is None:
            answered(StoreUnavailableError("the next term has not started yet"))
        else:
            self._start(self._read(self._session, reader, query, budget, answered), "read")

    async def _read(
        self, session: Session, reader: Reader, query: Query[Any], budget: Budget, answered: Answered
    ) -> None:
        answer: Any
        try:
            async with asyncio.timeout(QUERY_TIMEOUT):
                answer = await queries.answer(reader, session, query, budget)
        except TimeoutError:
            answer = StoreUnavailableError("the ensemble does not answer")
        except StoreError as error:
            answer = error
        except asyncio.CancelledError:
            answered(StoreUnavailableError("the term has ended"))
            raise
        except Exception as error:  # noqa: BLE001 - the caller would wait for ever
            answer = StoreBrokenError(f"a defect in the store's code: a read has failed: {error!r}")
            answer.__cause__ = error
        answered(answer)
        del answer

    # ---- the relay ----

    def listen(self, listener: Callable[[Message], None]) -> None:
        """Call a function with every message for this node; see ``Relay``."""
        self._listener = listener

    def send(self, to: int, message: Message) -> None:
        """Send a message to another node; see ``Relay``."""
        assert self._relay is not None
        self._relay.send(to, message)

    # ---- the membership ----

    def _open_tree(self) -> Tree:
        """Return the tree, also between two terms: if the next term did not start, the last one is ended again."""
        if self._tree is None:
            raise StoreUnavailableError("the store is not open")
        return self._tree

    def _who(self) -> str:
        if self._session is None:
            raise StoreUnavailableError("the next term has not started yet")
        if self._session.committer.fenced:
            # Its row could still be written: a node whose batches are refused must not look alive, or keep `/master`.
            raise self._session.over()
        return self._session.who

    async def beat(self, row: NodeRow) -> Sequence[NodeRow]:
        """Write the node's own row and return all; see ``MembershipPort``."""
        return await cluster.beat(self._open_tree(), self._who(), row)

    async def rows(self) -> Sequence[NodeRow]:
        """Return the rows of all nodes."""
        return await cluster.rows(self._open_tree())

    async def now(self) -> float:
        """Return the ensemble's wall time, in seconds. Raises StoreFencedError."""
        return await cluster.now(self._open_tree(), self._who())

    async def end(self, term: int, counter: int | None = None) -> bool:
        """End a term; see ``MembershipPort``."""
        return await cluster.end(self._open_tree(), term, counter)

    async def abandoned(self) -> Sequence[int]:
        """Return the ended terms that have left nodes behind."""
        return await abandoned(self._open_tree())

    async def ask_to_drain(self, term: int, *, draining: bool = True) -> bool:
        """Store the request that a node drain, or delete it."""
        return await cluster.ask_to_drain(self._open_tree(), term, draining=draining)

    # ---- closing ----

    async def _end_session(self) -> None:
        """End the tasks and the group of the term that is over."""
        session, self._session = self._session, None
        if session is None:
            return
        tasks, self._tasks = [*self._tasks], []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await session.committer.close()
        if self._group is not None:
            await asyncio.wait({self._group})

    async def close(self) -> None:
        """End the session, and with it the ephemeral node. It takes some seconds at most."""
        session, group = self._session, self._group
        await self._end_session()
        if group is not None:
            await asyncio.gather(group, return_exceptions=True)
        tree, self._tree = self._tree, None
        if tree is None:
            return
        if session is not None:
            with contextlib.suppress(StoreError, TimeoutError):
                await asyncio.wait_for(cluster.leave(tree, session.who), LEAVE_TIMEOUT)
        await tree.close()


async def handle(handlers: Handlers, session: Session, group: Sequence[Operation], answer: Answer) -> list[Any]:
    """Run the operations of a group, and return their outcomes in the group's order.

    If the node's term ended before any write, the whole group fails with StoreFencedError.
    """
    session.new.clear()
    plan = plan_of(group)
    outcomes: list[Any] = [None] * len(group)

    async def run(kind: type[Operation]) -> None:
        placed = plan[kind]
        answers: Sequence[Any]
        try:
            answers = await handlers[kind](session, [operation for _, operation in placed])
        except StoreError as error:
            answers = [error] * len(placed)  # the writes of other kinds are committed
        for (place, _), outcome in zip(placed, answers, strict=True):
            if isinstance(outcome, OpenClaim):
                outcome.then(partial(answer, place))
                outcomes[place] = DEFERRED
            elif kind.phase is Phase.WATCH and not isinstance(outcome, StoreError):
                answer(place, outcome)  # waiting clients get a job's progress before its settlement
                outcomes[place] = DEFERRED
            else:
                outcomes[place] = outcome

    kinds = list(plan)
    if kinds and kinds[0].phase is Phase.WATCH:
        await run(kinds.pop(0))
    if CONCURRENT_KINDS.issuperset(kinds):
        await asyncio.gather(*map(run, kinds))
    else:
        for kind in kinds:
            await run(kind)
    if outcomes and all(isinstance(outcome, StoreFencedError) for outcome in outcomes):
        raise outcomes[0]
    return outcomes
