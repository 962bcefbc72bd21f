"""The ends of jobs, each in one multi with what follows from it for schedules.

Whoever ends jobs makes the entries as for any other job, and has them written here. Runs of one family take turns; all others end
side by side.
"""

from __future__ import annotations

import asyncio
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.engines.zookeeper import locating, paths
from mainspring.engines.zookeeper.committer import Conflict, Fenced
from mainspring.engines.zookeeper.locating import patiently
from mainspring.engines.zookeeper.schedules.catalogue import Specifications
from mainspring.engines.zookeeper.schedules.transacting import RefusedError, Transacted, transact_all
from mainspring.errors import StoreError, StoreFencedError
from mainspring.ids import TERM_SPAN
from mainspring.jobs import rules
from mainspring.jobs.model import State
from mainspring.jobs.store import Ended
from mainspring.schedules import work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.committer import Entry, Verdict
    from mainspring.engines.zookeeper.schedules.catalogue import Known
    from mainspring.engines.zookeeper.schedules.tables import ZookeeperSchedules
    from mainspring.engines.zookeeper.session import Session
    from mainspring.jobs.model import Job

UNPUBLISHED: Final = 0.02
"""Seconds to wait before the end of a job is tried again whose task has another end that is not published yet."""


class End(NamedTuple):
    """An entry, and the job as it is once that is written."""

    entry: Entry
    job: Job
    worker: str = ""
    """The name of the worker that had it, where somebody keeps it."""


def is_owned(job: Job) -> bool:
    """Say whether something follows from the end of a job; see ``rules.owner``."""
    return State(job.state).ended and rules.owner(job.options) is not None


async def commit(session: Session, ends: Sequence[End]) -> list[Verdict | StoreError]:
    """Write entries, as ``Committer.commit`` does, and with each what follows from it; jobs may go on or have no owner.

    A conflict is one of the entry itself. A StoreError says why what follows could not be written, and so nothing was.
    """
    owned = [place for place, end in enumerate(ends) if is_owned(end.job)]
    if not owned:
        return [*await session.committer.commit([end.entry for end in ends])]
    verdicts: list[Verdict | StoreError] = [None] * len(ends)
    others = [place for place, end in enumerate(ends) if not is_owned(end.job)]

    async def commit_others() -> None:
        found = await session.committer.commit([ends[place].entry for place in others])
        for place, verdict in zip(others, found, strict=True):
            verdicts[place] = verdict

    async def commit_owned(turns: Sequence[Sequence[int]]) -> None:
        for places in zip_longest(*turns):
            some = [place for place in places if place is not None]
            found = await transact_all(session, [_transaction(ends[place]) for place in some])
            for place, outcome in zip(some, found, strict=True):
                verdicts[place] = _verdict(session, outcome)
            if any(isinstance(one, Conflict) and one.path.startswith(paths.COMPLETED) for one in verdicts):
                await asyncio.sleep(UNPUBLISHED)

    try:
        await locating.meet(session, [ends[place].job.term * TERM_SPAN for place in owned])
        known = await patiently(session, session.memory(Specifications).now)
    except StoreFencedError:
        return [Fenced(paths.worker(session.who))] * len(ends)
    turns = _turns(known, [(place, ends[place].job) for place in owned])
    await asyncio.gather(commit_others(), commit_owned(turns))
    return verdicts


def _turns(known: Known, placed: Sequence[tuple[int, Job]]) -> list[list[int]]:
    """Return which of some jobs end one after the other: who would write the same schedule at once is overtaken."""
    turns: dict[str | int, list[int]] = {}
    for place, job in placed:
        name = _owner(job)[0]
        turns.setdefault(known.turn(name) if known.minds_ends(name) else place, []).append(place)
    return list(turns.values())


def _transaction(end: End) -> Transacted:
    job = end.job
    ended = [Ended.of(job, end.worker)]

    async def follow(tables: ZookeeperSchedules) -> None:
        tables.ends(job, _owner(job))
        await work.follow(tables, ended)

    return Transacted(follow, end.entry)


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


def _owner(job: Job) -> tuple[str, int]:
    assert job.options is not None
    assert job.options.schedule is not None
    return job.options.schedule, job.options.fire_us
