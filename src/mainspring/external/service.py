"""The node's part in work that runs elsewhere: it begins and ends submissions for workers, and lets others be cancelled.

A call of a worker has hundreds of jobs, so thousands that begin together cost a few groups. Watching costs the store nothing: a
job that is watched is held under the term of its node as any other.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.clock import to_us
from mainspring.external.store import (
    BeginWork,
    End,
    EndWork,
    FindWork,
    LookAtWork,
    Looked,
    Record,
    RecordWork,
    Starting,
    Status,
)
from mainspring.jobs.held import Elsewhere
from mainspring.jobs.rules import note_begun

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.external.store import Work
    from mainspring.jobs.held import Held
    from mainspring.jobs.service import JobService
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.reads import Reads

LOOK_INTERVAL: Final = 1.0
"""Seconds between looks while there are submissions."""
IDLE_INTERVAL: Final = 10.0
"""Seconds between looks while this node knows of none."""
LOOK_KEY: Final = "works"
"""The name by which one node is the first that looks."""


class Begun(NamedTuple):
    """A submission that a worker begins, or goes on to watch."""

    number: int
    key: str
    meta: str
    age: float
    """Seconds since it began."""


class ShownWork(NamedTuple):
    """A submission, with the last report of a worker of this node."""

    work: Work
    looked_us: int = 0
    """When it has looked at the work, in microseconds of wall time; 0: it has not, or there is no report."""
    problem: str = ""


class WorkService:
    """The submissions of a node, which calls ``tick`` several times a second.

    On a shared store ``first`` returns whether this node is the first in line for a name. ``new_key`` returns unique texts.
    """

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        service: JobService,
        *,
        first: Callable[[str], bool] | None = None,
        new_key: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._service = service
        self._first = first or (lambda _: True)
        self._new_key = new_key
        self._look_at = clock.monotonic() + LOOK_INTERVAL
        self._is_looking = False
        self.cancelled = 0
        """Jobs that cancel work, made by this node."""

    # ---- for people ----

    async def of_job(self, job_id: int) -> list[ShownWork]:
        """Return the submissions of a job. Raises StoreError."""
        works = await self._reads.read(FindWork(job_id))
        held = self._service.table.find(job_id)
        elsewhere = None if held is None or held.worker is None else held.elsewhere
        shown = []
        for work in works:
            if elsewhere is None or elsewhere.number != work.number:
                shown.append(ShownWork(work))
            else:
                shown.append(ShownWork(work, self._wall_us(elsewhere), elsewhere.problem))
        return shown

    def _wall_us(self, elsewhere: Elsewhere) -> int:
        if not elsewhere.looked_at:
            return 0
        return to_us(self._clock.wall() - (self._clock.monotonic() - elsewhere.looked_at))

    # ---- requests of workers ----

    def begin(
        self,
        some: Sequence[Held | None],
        done: Callable[[list[Begun | None]], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        """Begin the submissions of deliveries; None in the answer for those that have ended by then."""
        waiting = [held for held in some if held is not None and not held.stored]
        if waiting:
            # A job that only a client waits for is stored first. Each callback comes once; the last one goes on.
            left = len(waiting)

            def kept() -> None:
                nonlocal left
                left -= 1
                if not left:
                    self._begin(some, done, failed)

            for held in waiting:
                self._service.keep(held, kept, lambda _: kept())  # the others begin; this one gets no answer
        else:
            self._begin(some, done, failed)

    def _begin(
        self,
        some: Sequence[Held | None],
        done: Callable[[list[Begun | None]], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        now_us = to_us(self._clock.wall())
        begins = [held for held in some if held is not None and held.stored and held.worker is not None]
        tokens = [held.token for held in begins]
        starting = [
            Starting(one.job.id, one.job.function, self._new_key(), one.job.payload, one.job.attempt) for one in begins
        ]

        def begun(works: list[Work]) -> None:
            self._look_soon()
            answers: dict[int, Begun] = {}
            for held, token, work in zip(begins, tokens, works, strict=True):
                if held.token == token and held.worker is not None:
                    answers[held.job.id] = self._begun(held, work)
            done([None if held is None else answers.get(held.job.id) for held in some])

        if begins:
            self._commits.put(BeginWork(starting, now_us), begun, failed)
        else:
            done([None] * len(some))

    def _begun(self, held: Held, work: Work) -> Begun:
        held.elsewhere = Elsewhere(
            work.number, work.key, is_submitted=bool(work.meta), timed_out=lambda: self._timed_out(held)
        )
        held.elsewhere.problem = self._service.settling.blocking.pop(held.job.id, "")
        age = max(self._clock.wall() - work.since_us / 1_000_000, 0.0)
        if work.meta:
            # Nodes that were lost meanwhile have counted attempts; it is still the same one.
            held.job.attempt = work.attempt
            note_begun(held.job)
            self._service.assigner.began_before(held, age)
        return Begun(work.number, work.key, work.meta, age)

    def record(
        self,
        some: Sequence[tuple[Held, int, str]],
        done: Callable[[set[tuple[int, int]]], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        """Record what other systems have answered; ``done`` gets the jobs and numbers that were recorded."""

        def recorded(keys: set[tuple[int, int]]) -> None:
            for held, number, _ in some:
                elsewhere = held.elsewhere
                if (held.job.id, number) in keys and elsewhere is not None and elsewhere.number == number:
                    elsewhere.is_submitted = True
            done(keys)

        records = [Record(held.job.id, number, meta) for held, number, meta in some]
        self._commits.put(RecordWork(records), recorded, failed)

    def end(self, some: Sequence[tuple[Held, Status]]) -> None:
        """End the submissions of deliveries. A settlement that is put later is committed with it or after it."""
        ends = [
            End(held.job.id, held.elsewhere.number, int(status)) for held, status in some if held.elsewhere is not None
        ]
        if ends:
            self._commits.put(EndWork(ends))

    def _timed_out(self, held: Held) -> None:
        leaves = held.ability is not None and held.ability.elsewhere == "leave"
        self.end([(held, Status.OVER if leaves else Status.CANCEL)])

    # ---- looks ----

    def tick(self) -> None:
        """Look for submissions that must not go on, when it is time."""
        now = self._clock.monotonic()
        if now < self._look_at or self._is_looking or self._service.dispatch.paused:
            return
        self._look_at = now + IDLE_INTERVAL
        if self._first(LOOK_KEY):
            self.look()

    def _look_soon(self) -> None:
        self._look_at = min(self._look_at, self._clock.monotonic() + LOOK_INTERVAL)

    def look(self) -> None:
        """Look once."""
        self._is_looking = True

        def looked(found: Looked) -> None:
            self._is_looking = False
            self.cancelled += found.cancelled
            if found.more:
                self.look()
            elif found.any:
                self._look_soon()

        def not_looked(error: StoreError) -> None:
            del error  # the next look repeats it
            self._is_looking = False

        self._commits.put(LookAtWork(to_us(self._clock.wall())), looked, not_looked)
