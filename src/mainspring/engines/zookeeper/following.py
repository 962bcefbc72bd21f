"""Changes of owned jobs: each is written in one multi with its consequences for the slice that owns the job.

Handlers that end jobs, return them to pending or record their start prepare the entries as for any other job, and write them
with `commit`. Changes of one group (``Slice.turns``) are written one after the other, all others concurrently.
"""

from __future__ import annotations

import asyncio
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.committer import Conflict, Fenced
from mainspring.engines.zookeeper.transacting import RefusedError, Transacted, transact_all
from mainspring.errors import StoreError, StoreFencedError
from mainspring.ids import TERM_SPAN
from mainspring.jobs.model import State
from mainspring.jobs.owners import Ended, owner

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from mainspring.engines.zookeeper.committer import Entry, Verdict
    from mainspring.engines.zookeeper.ground import ZookeeperGround
    from mainspring.engines.zookeeper.session import Session, Slice
    from mainspring.jobs.model import Job
    from mainspring.jobs.owners import Notice

RETRY_DELAY: Final = 0.02
"""Seconds until the end of a job is retried if its task has another end that is not published yet."""


class Happening(NamedTuple):
    """An entry, the job after its write, and the notice to the job's owner; None if it has none."""

    entry: Entry
    job: Job
    notice: Notice | None


def end(entry: Entry, job: Job) -> Happening:
    """Return the end of a job without a holder."""
    return Happening(entry, job, Ended.of(job))


class _Followed(NamedTuple):
    happening: Happening
    slice: Slice
    key: Any
    """The key of the job's owner."""


def _followed(session: Session, happening: Happening) -> _Followed | None:
    """Return the consequences of a change; None if there are none."""
    whose = owner(happening.job.options)
    if whose is None or happening.notice is None:
        return None
    one = session.slices.get(whose.kind)
    if one is None or type(happening.notice) not in one.follows:
        return None
    return _Followed(happening, one, whose.key)


async def commit(session: Session, happenings: Sequence[Happening]) -> list[Verdict | StoreError]:
    """Write entries, as ``Committer.commit`` does, each with its consequences.

    A conflict is one of the entry itself. A StoreError is the reason why the consequences, and thus the entry, were not written.
    """
    found = {place: one for place, each in enumerate(happenings) if (one := _followed(session, each)) is not None}
    if not found:
        return [*await session.committer.commit([each.entry for each in happenings])]
    verdicts: list[Verdict | StoreError] = [None] * len(happenings)
    others = [place for place in range(len(happenings)) if place not in found]

    async def commit_others() -> None:
        written = await session.committer.commit([happenings[place].entry for place in others])
        for place, verdict in zip(others, written, strict=True):
            verdicts[place] = verdict

    async def commit_owned(turns: Sequence[Sequence[int]]) -> None:
        for places in zip_longest(*turns):
            some = [place for place in places if place is not None]
            outcomes = await transact_all(session, [_transaction(found[place]) for place in some])
            for place, outcome in zip(some, outcomes, strict=True):
                verdicts[place] = _verdict(session, outcome)
            if any(isinstance(one, Conflict) and one.path.startswith(paths.COMPLETED) for one in verdicts):
                await asyncio.sleep(RETRY_DELAY)

    try:
        await session.meet([one.happening.job.term * TERM_SPAN for one in found.values()])
        turns = await session.retry_reads(lambda: _turns(session, found))
    except StoreFencedError:
        return [Fenced(paths.worker(session.who))] * len(happenings)
    await asyncio.gather(commit_others(), commit_owned(turns))
    return verdicts


async def _turns(session: Session, found: dict[int, _Followed]) -> list[list[int]]:
    """Return the places of changes in groups; those of one group are written one after the other."""
    turns: dict[Hashable, list[int]] = {}
    for one in {each.slice.kind: each.slice for each in found.values()}.values():
        places = [place for place, each in found.items() if each.slice is one]
        names = await one.turns(session, [found[place].key for place in places])
        for place, name in zip(places, names, strict=True):
            turns.setdefault(place if name is None else (one.kind, name), []).append(place)
    return list(turns.values())


def _transaction(one: _Followed) -> Transacted:
    entry, job, notice = one.happening
    assert notice is not None

    async def follow(ground: ZookeeperGround) -> None:
        if State(job.state).ended:
            ground.ends(job, one.key)
        unit = one.slice.unit(ground)
        await unit.follow([notice])
        await unit.flush()

    return Transacted(one.slice.ground, follow, entry)


def _verdict(session: Session, outcome: Any) -> Verdict | StoreError:
    match outcome:
        case RefusedError():
            return outcome.conflict
        case StoreFencedError():
            return Fenced(paths.worker(session.who))
        case StoreError() | None:
            return outcome
        case Exception():
            raise outcome
        case _:
            raise TypeError(f"{outcome!r} is no outcome of a transaction")
