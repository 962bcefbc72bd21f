"""The transactions of slices: each is attempted, from its first read to its write, until it has no conflict."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from mainspring.engines.zookeeper.committer import MAX_ENTRY_BYTES, RETRY_DELAY, Conflict, Entry, Fenced
from mainspring.engines.zookeeper.transaction import WRITE_ATTEMPTS, OvertakenError
from mainspring.engines.zookeeper.tree import Refusal, SessionEndedError
from mainspring.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.engines.zookeeper.committer import Verdict
    from mainspring.engines.zookeeper.ground import ZookeeperGround
    from mainspring.engines.zookeeper.session import Session

T = TypeVar("T")
G = TypeVar("G", bound="ZookeeperGround")

CONCURRENT_TRANSACTIONS: Final = 100
"""Transactions that run concurrently and are written at once."""


class RefusedError(Exception):
    """The first entry of a transaction was refused, so nothing was written."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__(conflict)
        self.conflict = conflict


class Transacted(NamedTuple):
    """A transaction to run."""

    begin: Callable[[Session], Any]
    """Creates the ``ZookeeperGround`` of an attempt."""
    work: Callable[[Any], Awaitable[Any]]
    """Its reads and writes. It may run many times, each time on a new ground."""
    first: Entry | None = None
    """An entry that is written with it, before its own changes."""


async def transact(session: Session, begin: Callable[[Session], G], work: Callable[[G], Awaitable[T]]) -> T:
    """Run ``work`` until its write has no conflict, and return its result.

    Raises StoreFencedError if this node may no longer write, StoreError if the write does not fit into one multi, and the
    errors of ``work``.
    """
    (outcome,) = await transact_all(session, [Transacted(begin, work)])
    if isinstance(outcome, Exception):
        raise outcome
    found: T = outcome
    return found


async def transact_all(session: Session, transactions: Sequence[Transacted]) -> list[Any]:
    """Do the same for several transactions, concurrently and independently; return their results or errors.

    The outcome is RefusedError if the first entry was refused. Reads are repeated while the ensemble is away.
    """
    outcomes: list[Any] = []
    for start in range(0, len(transactions), CONCURRENT_TRANSACTIONS):
        outcomes += await _transact(session, transactions[start : start + CONCURRENT_TRANSACTIONS])
    return outcomes


async def _transact(session: Session, transactions: Sequence[Transacted]) -> list[Any]:
    overtaken = StoreUnavailableError(f"{WRITE_ATTEMPTS} attempts to write all had conflicts with other writers")
    outcomes: list[Any] = [overtaken] * len(transactions)
    left = list(range(len(transactions)))
    for _ in range(WRITE_ATTEMPTS):
        tried = [_Attempt(session, place, transactions[place]) for place in left]
        try:
            await asyncio.gather(*(one.run() for one in tried))
            writing = [one for one in tried if one.entry is not None]
            verdicts = await session.committer.commit([one.entry for one in writing if one.entry is not None])
            for one, verdict in zip(writing, verdicts, strict=True):
                one.decide(verdict)
        finally:
            for one in tried:
                one.ground.rolled_back()
        for one in tried:
            if not one.must_repeat:
                outcomes[one.place] = one.outcome
        left = [one.place for one in tried if one.must_repeat]
        if not left:
            break
    return outcomes


class _Attempt:
    """One attempt of one transaction."""

    def __init__(self, session: Session, place: int, transaction: Transacted) -> None:
        self._session = session
        self.place = place
        self._transaction = transaction
        self.ground: ZookeeperGround = transaction.begin(session)
        self.outcome: Any = None
        """The result of the work, or its error."""
        self.entry: Entry | None = None
        """The entry to write."""
        self.must_repeat = False

    async def run(self) -> None:
        """Run the work, and prepare the entry."""
        try:
            self.outcome = await self._transaction.work(self.ground)
            self._plan()
        except OvertakenError:
            self._overtaken(None)
        except SessionEndedError:
            self.outcome = self._session.over()
        except StoreUnavailableError:
            if self._session.committer.fenced:
                self.outcome = self._session.over()
            else:
                self._overtaken(None)
                await asyncio.sleep(RETRY_DELAY)
        except Exception as error:  # noqa: BLE001 - the caller of the transaction raises it
            self.outcome = error

    def _plan(self) -> None:
        entries = [one for one in (self._transaction.first, self.ground.transaction.entry()) if one is not None]
        if not entries:
            self.ground.committed()
            return
        whole = Entry([at for one in entries for at in one.changes], [at for one in entries for at in one.counts])
        kind = self.ground.kind
        if whole.size > MAX_ENTRY_BYTES:
            self.outcome = StoreError(
                f"a change of {kind} and its consequences have {whole.size} bytes, and ZooKeeper accepts about "
                f"{MAX_ENTRY_BYTES} at once: give {kind} smaller arguments, or change fewer of them in one request"
            )
        else:
            self.entry = whole

    def decide(self, verdict: Verdict) -> None:
        """Apply the verdict on the entry."""
        first = self._transaction.first
        if verdict is None:
            self.ground.committed()
        elif isinstance(verdict, Fenced):
            self.outcome = self._session.over()
        elif first is not None and verdict.at < len(first.changes):
            self.outcome = RefusedError(verdict)
        else:
            self._overtaken(verdict)

    def _overtaken(self, conflict: Conflict | None) -> None:
        self.must_repeat = True
        self.ground.overtaken(conflict)
        if conflict is not None and conflict.why is Refusal.NO_NODE:
            self._session.forget(conflict.path.rpartition("/")[0])
