"""What happens to jobs, each in one multi with what follows from it for the slice that owns the job.

Whoever ends jobs, gives them back or records that they run makes the entries as for any other job, and has them written here.
What takes turns (``Slice.turns``) is written one after the other, all else side by side.
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

UNPUBLISHED: Final = 0.02
"""Seconds to wait before the end of a job is tried again whose task has another end that is not published yet."""


class Happening(NamedTuple):
    """An entry, the job as it is once that is written, and what that means for its owner; None where it has none."""

    entry: Entry
    job: Job
    notice: Notice | None


def end(entry: Entry, job: Job) -> Happening:
    """Return the end of a job that nobody held."""
    return Happening(entry, job, Ended.of(job))


class _Followed(NamedTuple):
    happening: Happening
    slice: Slice
    key: Any
    """Of the job's owner."""


def _followed(session: Session, happening: Happening) -> _Followed | None:
    """Return what follows from what has happened; None where nothing does."""
    whose = owner(happening.job.options)
    if whose is None or happening.notice is None:
        return None
    one = session.slices.get(whose.kind)
    if one is None or type(happening.notice) not in one.follows:
        return None
    return _Followed(happening, one, whose.key)


async def commit(session: Session, happenings: Sequence[Happening]) -> list[Verdict | StoreError]:
    """Write entries, as ``Committer.commit`` does, and with each what follows from it.

    A conflict is one of the entry itself. A StoreError says why what follows could not be written, and so nothing was.
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
                await asyncio.sleep(UNPUBLISHED)

    try:
        await session.meet([one.happening.job.term * TERM_SPAN for one in found.values()])
        turns = await session.patiently(lambda: _turns(session, found))
    except StoreFencedError:
        return [Fenced(paths.worker(session.who))] * len(happenings)
    await asyncio.gather(commit_others(), commit_owned(turns))
    return verdicts


async def _turns(session: Session, found: dict[int, _Followed]) -> list[list[int]]:
    """Return which of some places are written one after the other."""
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
            raise TypeError(f"{outcome!r} is no outcome of what follows")
