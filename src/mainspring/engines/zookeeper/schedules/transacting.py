"""One transaction of the schedules, from its first read until it is written, as often as others are quicker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from mainspring.engines.zookeeper.committer import AGAIN, Conflict, Entry, Fenced
from mainspring.engines.zookeeper.schedules.catalogue import Specifications
from mainspring.engines.zookeeper.schedules.tables import Made, ZookeeperSchedules
from mainspring.engines.zookeeper.transaction import PATIENCE, OvertakenError
from mainspring.engines.zookeeper.tree import Refusal, SessionEndedError
from mainspring.errors import StoreError, StoreFencedError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mainspring.engines.zookeeper.session import Session

T = TypeVar("T")

LARGEST: Final = 1_020_000
"""Bytes that one multi may have, about: a server closes the connection of who sends more than 1,048,575."""


class RefusedError(Exception):
    """What was to be written before anything else was refused: nothing has happened."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__(conflict)
        self.conflict = conflict


async def transact(
    session: Session, work: Callable[[ZookeeperSchedules], Awaitable[T]], first: Entry | None = None
) -> T:
    """Run some work until what it has read still holds when it is written; returns what it has returned then.

    The work may be run many times, each time on new tables. Reads are repeated as long as the ensemble is away. ``first`` is
    written with it, before it. Raises RefusedError where that is refused, StoreFencedError where this node may not write any
    more, StoreError where it is more than fits into one multi, and whatever the work raises.
    """
    for _ in range(PATIENCE):
        tables = ZookeeperSchedules(session)
        try:
            outcome = await work(tables)
            if await _is_written(session, first, tables.transaction.entry()):
                tables.committed()
                return outcome
        except OvertakenError:
            await asyncio.sleep(0)
        except SessionEndedError as error:
            raise _fenced(session) from error
        except StoreUnavailableError:
            if session.committer.fenced:
                raise _fenced(session) from None
            await asyncio.sleep(AGAIN)
        finally:
            tables.rolled_back()
        session.memory(Specifications).doubt()
    raise StoreUnavailableError(f"{PATIENCE} attempts to change schedules were all overtaken by others")


async def patiently(session: Session, read: Callable[[], Awaitable[T]]) -> T:
    """Read something, however long the ensemble is away. Raises StoreFencedError where this node may not write any more."""
    while True:
        try:
            return await read()
        except SessionEndedError as error:
            raise _fenced(session) from error
        except StoreUnavailableError:
            if session.committer.fenced:
                raise _fenced(session) from None
            await asyncio.sleep(AGAIN)


async def _is_written(session: Session, first: Entry | None, entry: Entry | None) -> bool:
    entries = [one for one in (first, entry) if one is not None]
    if not entries:
        return True
    whole = Entry(
        [change for one in entries for change in one.changes], [count for one in entries for count in one.counts]
    )
    if whole.size > LARGEST:
        raise StoreError(
            f"what follows from one another in schedules has {whole.size} bytes, and ZooKeeper takes about {LARGEST} at once: "
            "give them smaller arguments, or change fewer of them in one request"
        )
    (verdict,) = await session.committer.commit([whole])
    if isinstance(verdict, Fenced):
        raise _fenced(session)
    if verdict is not None and first is not None and verdict.at < len(first.changes):
        raise RefusedError(verdict)
    if verdict is not None and verdict.why is Refusal.NO_NODE:
        parent = verdict.path.rpartition("/")[0]
        session.forget(parent)
        session.memory(Made).paths.discard(parent)
    return verdict is None


def _fenced(session: Session) -> StoreFencedError:
    return StoreFencedError(f"term {session.term} was ended by another node")
