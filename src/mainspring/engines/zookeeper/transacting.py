"""One transaction of a slice, from its first read until it is written, as often as others are quicker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from mainspring.engines.zookeeper.committer import LARGEST_ENTRY, RETRY_DELAY, Conflict, Entry, Fenced
from mainspring.engines.zookeeper.transaction import PATIENCE, OvertakenError
from mainspring.engines.zookeeper.tree import Refusal, SessionEndedError
from mainspring.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.engines.zookeeper.committer import Verdict
    from mainspring.engines.zookeeper.ground import ZookeeperGround
    from mainspring.engines.zookeeper.session import Session

T = TypeVar("T")
G = TypeVar("G", bound="ZookeeperGround")

SIDE_BY_SIDE: Final = 100
"""Transactions that read at once; what they write goes out together."""


class RefusedError(Exception):
    """What was to be written before anything else was refused: nothing has happened."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__(conflict)
        self.conflict = conflict


class Transacted(NamedTuple):
    """A transaction that is to happen."""

    begin: Callable[[Session], Any]
    """Makes the ground of an attempt: a ``ZookeeperGround``."""
    work: Callable[[Any], Awaitable[Any]]
    """What it reads and writes. It may be run many times, each time on new ground."""
    first: Entry | None = None
    """What is written with it, before it."""


async def transact(session: Session, begin: Callable[[Session], G], work: Callable[[G], Awaitable[T]]) -> T:
    """Run some work until what it has read still holds when it is written; returns what it has returned then.

    Raises StoreFencedError where this node may not write any more, StoreError where it is more than fits into one multi, and
    whatever the work raises.
    """
    (outcome,) = await transact_all(session, [Transacted(begin, work)])
    if isinstance(outcome, Exception):
        raise outcome
    found: T = outcome
    return found


async def transact_all(session: Session, transactions: Sequence[Transacted]) -> list[Any]:
    """Do the same for several, side by side and each by itself; returns what they have returned, or what they have raised.

    RefusedError is the outcome where what was to be written first was refused. Reads are repeated as long as the ensemble is
    away.
    """
    outcomes: list[Any] = []
    for start in range(0, len(transactions), SIDE_BY_SIDE):
        outcomes += await _transact(session, transactions[start : start + SIDE_BY_SIDE])
    return outcomes


async def _transact(session: Session, transactions: Sequence[Transacted]) -> list[Any]:
    overtaken = StoreUnavailableError(f"{PATIENCE} attempts to write were all overtaken by others")
    outcomes: list[Any] = [overtaken] * len(transactions)
    left = list(range(len(transactions)))
    for _ in range(PATIENCE):
        tried = [_Try(session, place, transactions[place]) for place in left]
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
            if not one.again:
                outcomes[one.place] = one.outcome
        left = [one.place for one in tried if one.again]
        if not left:
            break
    return outcomes


class _Try:
    """One attempt of one transaction."""

    def __init__(self, session: Session, place: int, transaction: Transacted) -> None:
        self._session = session
        self.place = place
        self._transaction = transaction
        self.ground: ZookeeperGround = transaction.begin(session)
        self.outcome: Any = None
        """What the work has returned, or what it is to raise."""
        self.entry: Entry | None = None
        """What is to be written."""
        self.again = False

    async def run(self) -> None:
        """Read and decide."""
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
        except Exception as error:  # noqa: BLE001 - it is raised where the outcome is taken
            self.outcome = error

    def _plan(self) -> None:
        entries = [one for one in (self._transaction.first, self.ground.transaction.entry()) if one is not None]
        if not entries:
            self.ground.committed()
            return
        whole = Entry([at for one in entries for at in one.changes], [at for one in entries for at in one.counts])
        kind = self.ground.kind
        if whole.size > LARGEST_ENTRY:
            self.outcome = StoreError(
                f"what follows from one another in {kind} has {whole.size} bytes, and ZooKeeper takes about {LARGEST_ENTRY} at "
                f"once: give {kind} smaller arguments, or change fewer of them in one request"
            )
        else:
            self.entry = whole

    def decide(self, verdict: Verdict) -> None:
        """Take what became of the entry."""
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
        self.again = True
        self.ground.overtaken(conflict)
        if conflict is not None and conflict.why is Refusal.NO_NODE:
            self._session.forget(conflict.path.rpartition("/")[0])
