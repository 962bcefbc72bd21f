"""Groups: each is run until it is known whether it was committed, however often the store goes away meanwhile.

::

    BEGIN; enter ──► handlers, phase by phase ──► journal; COMMIT ──► answered
      │  MS001: the term has ended                  │
      │  MS002: committed by an attempt before      └─ connection lost: nobody knows
      ▲                                                       │
      └──────── connect, wait for the old session to end ◄────┘

Nearly all groups are one statement instead, which has all of that in it and commits by itself (`fast_path`).

The session of a term's groups holds an advisory lock on the term until it ends. The next one takes the lock before it asks
anything, so that no attempt of an old session is under way any more: what `enter` then says of a group is final. The journal's
primary key is the second guard: two attempts of a group cannot both be committed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from mainspring.engines.postgres import failures, journal
from mainspring.engines.postgres.connection import EVERY, connect_patiently, delays, disconnect
from mainspring.engines.postgres.failures import Verdict
from mainspring.engines.postgres.fast_path import FastPathBackoff, compose
from mainspring.engines.postgres.functions import Functions, Nodes
from mainspring.engines.postgres.handlers import Runner
from mainspring.engines.postgres.rows import SQL
from mainspring.engines.postgres.statements import load
from mainspring.engines.postgres.transaction import Memory, Transaction
from mainspring.errors import StoreError, StoreFencedError
from mainspring.storage.plan import only_reads, plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncpg import Connection, Record

    from mainspring.engines.postgres.address import Address
    from mainspring.jobs.slices import JobLifecycle, Slice
    from mainspring.storage.operation import Operation
    from mainspring.storage.plan import Plan

log = structlog.get_logger("mainspring.postgres")
_SQL = load("engine.sql")

ANSWER: Final = 5.0
"""Seconds for what takes the server a moment. Between groups nobody else notices that a way is dead; within one, `watch` does."""
SAY_AFTER: Final = 5.0
"""Seconds for which a group is run again before the log says so."""
RACES: Final = 5
"""How often a group that meets what may be a race is run, before it counts as a defect."""


class Sent(NamedTuple):
    """An attempt whose COMMIT was sent: it may have been committed."""

    tx: Transaction
    outcomes: list[Any]


class Writer:
    """The connection of a term's groups; one group at a time."""

    def __init__(
        self,
        address: Address,
        name: str,
        nodes: Nodes,
        committed: Callable[[Transaction], object],
        slices: Sequence[Slice[Transaction]],
        lifecycle: JobLifecycle | None,
    ) -> None:
        """``committed`` is called with each transaction that has been committed, before the outcomes are told."""
        self.runner = Runner(slices)
        self._address = address
        self._name = name
        self._nodes = nodes
        self._functions = Functions()
        self.memory: Memory = {}
        """What the handlers remember from group to group."""
        self._committed = committed
        self._followers = lifecycle
        self._connection: Connection[Record] | None = None
        self._term = 0
        self._number = 0
        self.busy = False
        """Whether an attempt is under way on a connection."""
        self.attempts = 0
        self.luck = FastPathBackoff()

    async def begin(self, term: int, patience: float | None) -> None:
        """Run groups under a term from now on; raises StoreError where there is no connection for them."""
        self._term, self._number = term, 0
        self.memory.clear()
        connection = self._connection
        if connection is not None and not connection.is_closed():
            try:
                async with asyncio.timeout(ANSWER):
                    await connection.execute("SELECT pg_advisory_unlock_all()")
                    await self._lock(connection)
            except failures.ERRORS:
                connection.terminate()
            else:
                return
        await self._connect(patience)

    @property
    def pid(self) -> int | None:
        """The backend that runs the groups, where there is one."""
        connection = self._connection
        return None if connection is None or connection.is_closed() else connection.get_server_pid()

    def give_up(self) -> None:
        """Drop the connection, which does not answer: the group under way is run again on another."""
        if self._connection is not None:
            self._connection.terminate()

    async def close(self) -> None:
        """Disconnect."""
        await disconnect(self._connection)
        self._connection = None

    # ---- a group ----

    async def run(self, group: Sequence[Operation]) -> list[Any] | StoreError:
        """Run a group; returns when it is known how it has ended."""
        plan = plan_of(group)
        if only_reads(plan):
            return await self._repeat(lambda connection: self._read(connection, plan, len(group)))
        self._number += 1
        return await self._repeat(_Group(self, plan, len(group), self._number).attempt)

    async def _repeat(self, attempt: Callable[[Connection[Record]], Any]) -> list[Any] | StoreError:
        pauses = delays()
        races = 0
        clock = asyncio.get_running_loop().time
        say_at = clock() + SAY_AFTER
        while True:
            if self._connection is None or self._connection.is_closed():
                await self._connect(None)
            connection = self._connection
            assert connection is not None
            self.attempts += 1
            self.busy = True
            try:
                return await attempt(connection)  # type: ignore[no-any-return]
            except Exception as error:  # noqa: BLE001 - a defect of ours costs one group
                self.busy = False
                verdict = await self.clean(connection, error)
                if verdict is Verdict.RACE and (races := races + 1) >= RACES:
                    verdict = Verdict.DEFECT
                match verdict:
                    case Verdict.AWAY | Verdict.BUSY | Verdict.RACE:
                        if clock() < say_at:
                            log.debug("a group is run again", reason=repr(error))
                        else:
                            say_at = clock() + EVERY
                            log.warning("a group cannot be committed yet: trying again", reason=str(error))
                        await asyncio.sleep(next(pauses))
                    case Verdict.FENCED:
                        fenced = StoreFencedError(f"term {self._term} was ended by another node")
                        fenced.__cause__ = error
                        return fenced
                    case _:
                        failure = failures.explain(error, self._address)
                        failure.__cause__ = error
                        return failure
            finally:
                self.busy = False

    async def clean(self, connection: Connection[Record], error: BaseException) -> Verdict:
        """Take the connection out of whatever it is in, and say what the error means."""
        verdict = failures.judge(error, connected=not connection.is_closed())
        if verdict is Verdict.AWAY:
            connection.terminate()
        elif not connection.is_closed() and connection.is_in_transaction():  # it may have been given up in the meantime
            try:
                async with asyncio.timeout(ANSWER):
                    await connection.execute("ROLLBACK")
            except failures.ERRORS:
                connection.terminate()  # which rolls back as well
        return verdict

    async def _read(self, connection: Connection[Record], plan: Plan, size: int) -> list[Any]:
        tx = self.transaction(connection)
        outcomes = await self.runner.handle(tx, plan, size)
        self._functions.committed()
        return outcomes

    def transaction(self, connection: Connection[Record]) -> Transaction:
        """Return what one attempt on a connection shares."""
        self._functions.use(connection)
        self._nodes.use(connection)
        return Transaction(connection, self._term, self._functions, self._nodes, self.memory, self._followers)

    def done(self, tx: Transaction) -> None:
        """Note that an attempt was committed."""
        self._functions.committed()
        try:
            for function in tx.commits:
                function()
            self._committed(tx)
        except Exception:
            log.exception("after a commit: a defect in the store's code")  # the outcomes stand

    def forget(self) -> None:
        """Forget what an attempt has given, which was rolled back, or may have been."""
        self._functions.rolled_back()

    @staticmethod
    def undone(tx: Transaction) -> None:
        """Note that an attempt was rolled back."""
        for function in tx.rollbacks:
            function()
        tx.rollbacks.clear()

    # ---- the connection ----

    async def _connect(self, patience: float | None) -> None:
        """Connect, and take the lock on the term: whoever has it still is a session of ours that is lost."""
        while True:
            connection = await connect_patiently(self._address, self._name, patience)
            try:
                async with asyncio.timeout(ANSWER):
                    await self._lock(connection)
            except failures.ERRORS as error:
                connection.terminate()
                if patience is not None and not failures.is_away(error):
                    raise failures.explain(error, self._address) from error
                log.warning("the store went away again", reason=str(error) or type(error).__name__)
                await asyncio.sleep(0.5)
            except BaseException:
                connection.terminate()
                raise
            else:
                self._connection = connection
                return

    async def _lock(self, connection: Connection[Record]) -> None:
        key = (self._address.checksum, self._term)
        tries = 0
        while not await connection.fetchval(_SQL["lock_term"], *key):
            await connection.execute(_SQL["break_off"], *key)
            await asyncio.sleep(0.02)
            tries += 1
            if tries % 200 == 0:
                log.warning("the session before does not end: no group can be committed until it does", term=self._term)


def _now() -> float:
    return asyncio.get_running_loop().time()


class _Group:
    """A group that writes, from its first attempt to the last."""

    def __init__(self, writer: Writer, plan: Plan, size: int, number: int) -> None:
        self._writer = writer
        self._plan = plan
        self._size = size
        self._number = number
        self._sent: Sent | None = None
        self._is_usual = writer.luck.tries(_now())

    async def _at_once(self, connection: Connection[Record], tx: Transaction) -> list[Any] | None:
        """Run it in one statement, where it can be; returns None where it was not as usual, and nothing has happened."""
        fast_path = await compose(tx, self._plan, self._size, self._number)
        if fast_path is None:
            return None
        self._sent = Sent(tx, fast_path.outcomes)
        if await connection.fetchval(SQL["usual"], *fast_path.arguments):
            return fast_path.outcomes
        self._sent = None
        self._writer.luck.missed(_now())
        return None

    async def attempt(self, connection: Connection[Record]) -> list[Any]:
        """Run it once; where it turns out that the attempt before was committed, return what that one has found."""
        tx = self._writer.transaction(connection)
        before = self._sent
        try:
            if self._is_usual:
                self._is_usual = False  # whatever comes of it, another attempt goes step by step
                outcomes = await self._at_once(connection, tx)
                if outcomes is not None:
                    self._writer.done(tx)
                    return outcomes
                tx = self._writer.transaction(connection)
            await connection.execute(f"BEGIN; SELECT enter({tx.term}, {self._number})")
            if before is not None:
                self._writer.undone(before.tx)  # otherwise it would not have been let in
            outcomes = await self._writer.runner.handle(tx, self._plan, self._size)
            self._sent = Sent(tx, outcomes)
            await connection.execute(journal.entry(tx, self._number))
        except BaseException as error:
            self._writer.forget()
            verdict = failures.judge(error, connected=not connection.is_closed())
            unknown = verdict is Verdict.AWAY and self._sent is not None and self._sent.tx is tx
            if not unknown:
                self._writer.undone(tx)
            if before is None or verdict is not Verdict.COMMITTED:
                if before is not None and verdict is Verdict.FENCED:
                    self._writer.undone(before.tx)
                raise
            await self._writer.clean(connection, error)
            tx, outcomes = before
        self._writer.done(tx)
        return outcomes
