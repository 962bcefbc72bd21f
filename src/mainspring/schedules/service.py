"""The schedules of one node: fires what is due, and answers those who ask and change.

What is due fires at its time (``storage.agenda``). Where several nodes share the store, whoever is second changes nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from mainspring.clock import to_us
from mainspring.errors import ConflictError, UsageError
from mainspring.schedules import reconcile, registration, triggers
from mainspring.schedules.model import Origin
from mainspring.schedules.store import (
    Change,
    Declare,
    Due,
    FindDue,
    FireSchedules,
    ForgetFires,
    ListSchedules,
    MendSchedules,
    SaveSchedules,
    TriggerSchedule,
)
from mainspring.slices import Slices
from mainspring.storage.agenda import Agenda

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import MainspringError, StoreError
    from mainspring.jobs.timers import Timers
    from mainspring.schedules.model import Fire, Schedule
    from mainspring.schedules.reconcile import Stored
    from mainspring.schedules.store import Declared, Fired, Forgotten, Saved
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.reads import Reads

    Failed = Callable[[MainspringError], None]

MEND_EVERY = 5.0
MENDING = "mending"
"""What nodes take turns for as if it were a schedule of this name."""
FORGET_EVERY = 3600.0
"""Seconds between looks at all schedules for rows that may be dropped."""
FORGET_AFTER = 60.0
"""Seconds until the first one."""
FORGETTING = "forgetting"
BATCH = 250
"""Schedules that are fired in one operation: the first jobs of many that are due at once start before the last are decided."""
DECLARED_FOR = 60.0
"""Seconds for which code counts as running after it was declared: nodes and workers repeat it more often."""
REPEATS = 5


class Declaration(NamedTuple):
    """What became of schedules that code has declared."""

    governs: bool
    """Whether this code counts; otherwise newer code of the App runs, and nothing was changed."""
    changes: list[reconcile.Change]


class ScheduleService:
    """The schedules slice of a node. Its timers are the node's; ``tick`` is called at least every quarter of a second.

    ``paused`` says that the node drains or has no lease: nothing is fired then. ``first`` says whether this node is first in line
    for a schedule, where several nodes share the store; None: no other node has it. Then code that was declared before now does
    not run any more, unless it is declared again. ``retention`` are the seconds for which histories are kept at least. ``fires``:
    False where the node fires nothing at all. Then it still keeps what people and code say of schedules, runs one by hand, and
    starts what follows from the end of a run: that is part of the transaction in which the run ends. No other node would do it.
    """

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        timers: Timers,
        paused: Callable[[], bool] = lambda: False,
        *,
        first: Callable[[str], bool] | None = None,
        retention: float = 14 * 86_400.0,
        fires: bool = True,
    ) -> None:
        self.fires = fires
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._timers = timers
        self._paused = paused
        self._first = first or (lambda _: True)
        self._agenda = Agenda(
            clock,
            timers,
            lambda until_us, found, failed: commits.put(FindDue(until_us), found, failed),
            self._fire,
            lambda due: due.name,
            first=self._first,
            paused=paused,
        )
        """What is due soon."""
        self._open: FireSchedules | None = None
        """What has been put last: it takes more until it is part of a group, so that a group has few of them."""
        self._retention = retention
        self.run_sliced = Slices(lambda step: timers.at(clock.monotonic(), step), clock.monotonic).start
        """For what takes long when it is asked of many schedules."""
        self._mending = self._forgetting = False
        self._mended = clock.monotonic()
        self._forget_at = clock.monotonic() + FORGET_AFTER
        self._declared_since_us = 0 if first is not None else self._now_us()

    @property
    def lateness(self) -> float:
        """By how many seconds the last fire time that this node tried was late when its operation was made."""
        return self._agenda.lateness

    def _now_us(self) -> int:
        return to_us(self._clock.wall())

    # ---- time ----

    def tick(self) -> None:
        """Do what is due now and then."""
        if self._paused():
            return
        now = self._clock.monotonic()
        if now - self._mended >= MEND_EVERY and not self._mending:
            self._mended = now
            if self._first(MENDING):  # one node is enough, and which one it is changes with who is there
                self._mend()
        if now >= self._forget_at and not self._forgetting:
            self._forget_at = now + FORGET_EVERY
            if self._first(FORGETTING):
                self._forgetting = True
                self._forget("")
        if self.fires:
            self._agenda.tick()

    # ---- firing ----

    def look(self) -> None:
        """Fetch what is due in the next seconds, now or as soon as a look that is under way has ended."""
        if self.fires:  # what is not fetched is not fired
            self._agenda.fetch()

    def _fire(self, due: Iterable[Due]) -> None:
        """Have schedules fired, together with those that wait for the store already."""
        for one in due:
            operation = self._open
            if operation is None or not operation.open or len(operation.due) >= BATCH:
                operation = self._open = self._operation()
            operation.due.append(one)
            operation.rows += 1
            operation.now_us = self._now_us()

    def _operation(self) -> FireSchedules:
        due: list[Due] = []
        operation = FireSchedules(due, 0)
        self._commits.put(operation, self._fired, lambda error: self._not_fired(due, error))
        return operation

    def _fired(self, outcome: dict[str, Fired]) -> None:
        self._agenda.done(outcome)
        stored = [one.stored for one in outcome.values() if one.stored is not None]
        self._agenda.add((_due(one), one.state.next_us) for one in stored if one.state.next_us is not None)

    def _not_fired(self, due: Sequence[Due], error: StoreError) -> None:
        del error
        self._agenda.done(one.name for one in due)
        self._agenda.fetch_later()

    def _mend(self) -> None:
        def mended(number: int) -> None:
            self._mending = False
            if number:
                self.look()  # versions have changed

        def not_mended(error: StoreError) -> None:
            del error
            self._mending = False

        self._mending = True
        self._commits.put(MendSchedules(self._now_us()), mended, not_mended)

    # ---- what is old ----

    def _forget(self, after: str) -> None:
        """Drop old rows of the schedules whose names come after one, some at a time: each goes with another group."""

        def forgotten(outcome: Forgotten) -> None:
            if outcome.after is None or self._paused():
                self._forgetting = False
            else:
                self._forget(outcome.after)

        def not_forgotten(error: StoreError) -> None:
            del error
            self._forgetting = False

        before_us = self._now_us() - to_us(self._retention)
        self._commits.put(ForgetFires(after, before_us), forgotten, not_forgotten)

    # ---- those who ask ----

    def find(self, done: Callable[[list[Stored]], None], failed: Failed, names: Sequence[str] | None = None) -> None:
        """Read schedules: those named, or all."""
        query = ListSchedules(limit=sys.maxsize, names=None if names is None else tuple(names))
        self._reads.gather(query, lambda page: done(page.items), failed)

    # ---- those who change ----

    def save(self, changes: Sequence[Change], done: Callable[[dict[str, Stored | None]], None], failed: Failed) -> None:
        """Change schedules, all of them or none; ``failed`` hears a UsageError, NotFoundError, ConflictError or StoreError."""
        self.run_sliced(self._save(changes, done, failed))

    def _save(
        self, changes: Iterable[Change], done: Callable[[dict[str, Stored | None]], None], failed: Failed
    ) -> Iterator[None]:
        """Save what is right, in slices: to check it, and to find first fire times, takes long where it is much."""
        now_us = self._now_us()
        checked: list[Change] = []
        try:
            for change in changes:
                schedule = change.schedule
                if schedule is not None:
                    registration.check(schedule)
                    change = change._replace(first_us=triggers.first(schedule, now_us))
                checked.append(change)
                yield
        except UsageError as error:
            failed(error)
            return

        def saved(outcome: Saved) -> None:
            if outcome.error is not None:
                failed(outcome.error)
                return
            done(outcome.schedules)
            self.look()

        self._commits.put(SaveSchedules(checked, now_us), saved, failed)

    def trigger(self, name: str, done: Callable[[Fire | None], None], failed: Failed) -> None:
        """Run a schedule now; ``done`` hears the row, or None where there is no such schedule."""
        self._commits.put(TriggerSchedule(name, self._now_us()), done, failed)

    # ---- code that declares ----

    def declare(
        self, app: str, declared: Collection[Schedule], done: Callable[[Declaration], None], failed: Failed
    ) -> None:
        """Make the store as the code of an App says, if that code governs; see ``reconcile``. To be repeated while it runs."""
        mine = reconcile.digest(declared)

        def seen(known: list[Declared]) -> None:
            since_us = max(self._now_us() - to_us(DECLARED_FOR), self._declared_since_us)
            live = {one.deployment.digest for one in known if one.last_seen_us >= since_us}
            deployments = [one.deployment for one in known]
            (me,) = (one for one in deployments if one.digest == mine)
            if reconcile.governs(me, deployments, live):
                self._reconcile(app, declared, done, failed, REPEATS)
            else:
                done(Declaration(governs=False, changes=[]))

        self._commits.put(Declare(app, mine, self._now_us()), seen, failed)

    def _reconcile(
        self,
        app: str,
        declared: Collection[Schedule],
        done: Callable[[Declaration], None],
        failed: Failed,
        repeats: int,
    ) -> None:
        def found(stored: list[Stored]) -> None:
            self.run_sliced(compare({one.schedule.name: one for one in stored}))

        def compare(stored: dict[str, Stored]) -> Iterator[None]:
            declaration = Declaration(governs=True, changes=[])
            changes: list[Change] = []
            for one in reconcile.compare(app, declared, stored):
                if one is not None:
                    declaration.changes.append(one)
                    changes += _changes(app, [one], stored)
                yield
            if changes:
                yield from self._save(changes, lambda _: done(declaration), refused)
            else:
                done(declaration)

        def refused(error: MainspringError) -> None:
            if isinstance(error, ConflictError) and repeats:
                self._reconcile(app, declared, done, failed, repeats - 1)  # another node was quicker
            else:
                failed(error)

        self.find(found, failed)


def _due(stored: Stored) -> Due:
    return Due(stored.schedule.name, stored.state.version)


def _changes(app: str, differences: Iterable[reconcile.Change], stored: dict[str, Stored]) -> Iterable[Change]:
    for one in differences:
        version = stored[one.name].state.version if one.name in stored else 0
        if one.kind is reconcile.Kind.REMOVED:
            yield Change("remove", one.name, version)
        elif one.kind is not reconcile.Kind.LEFT and one.after is not None:
            yield Change("put", one.name, version, one.after, Origin.CODE, app, reconcile.digest([one.after]))
