"""The schedules of one node: fires what is due, and answers those who ask and change.

What is due in the next seconds is fetched ahead into a queue in memory, so that it fires at its time and not at that of the
next look. On a store that several nodes share, each of them has it in its queue. The one that is first in line fires it; the
others look a moment later whether that has happened, and do it where it has not. Whoever is second changes nothing.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

from mainspring.clock import from_us, to_us
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

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import MainspringError, StoreError
    from mainspring.jobs.timers import Timer, Timers
    from mainspring.schedules.model import Fire, Schedule
    from mainspring.schedules.reconcile import Stored
    from mainspring.schedules.store import Declared, Fired, Forgotten, Saved, Upcoming
    from mainspring.storage.commit_queue import CommitQueue

    Failed = Callable[[MainspringError], None]

AHEAD = 5.0
"""Seconds before its time that a fire time is fetched."""
LOOK_EVERY = 2.0
"""Seconds between looks at what others have changed."""
MEND_EVERY = 5.0
MENDING = "mending"
"""What nodes take turns for as if it were a schedule of this name."""
FORGET_EVERY = 3600.0
"""Seconds between looks at all schedules for rows that may be dropped."""
FORGET_AFTER = 60.0
"""Seconds until the first one."""
FORGETTING = "forgetting"
BACKUP = 0.4
"""Seconds that a node waits for another one to fire what is that one's."""
AGAIN = 0.25
"""Seconds after which the store is asked again where it could not answer."""
BATCH = 250
"""Schedules that are fired in one operation: the first jobs of many that are due at once start before the last are decided."""
DECLARED_FOR = 60.0
"""Seconds for which code counts as running after it was declared: nodes and workers repeat it more often."""
REPEATS = 5


class _Entry(NamedTuple):
    try_us: int
    """When this node tries."""
    next_us: int
    due: Due
    first: bool


class Declaration(NamedTuple):
    """What became of schedules that code has declared."""

    governs: bool
    """Whether this code counts; otherwise newer code of the App runs, and nothing was changed."""
    changes: list[reconcile.Change]


class ScheduleService:
    """The schedules slice of a node. Its timers are the node's; ``tick`` is called at least every quarter of a second.

    ``paused`` says that the node drains or has no lease: nothing is fired then. ``retention`` are the seconds for which histories
    are kept at least. ``fires``: False where the node fires nothing at all. Then it still keeps what people and code say of
    schedules, runs one by hand, and starts what follows from the end of a run: that is part of the transaction in which the run
    ends, and no other node would do it.
    """

    def __init__(
        self,
        commits: CommitQueue,
        clock: Clock,
        timers: Timers,
        paused: Callable[[], bool] = lambda: False,
        *,
        retention: float = 14 * 86_400.0,
        fires: bool = True,
    ) -> None:
        self.fires = fires
        self._commits = commits
        self._clock = clock
        self._timers = timers
        self._paused = paused
        self.first: Callable[[str], bool] = lambda _: True
        """Set where several nodes share the store: whether this one is first in line for a schedule."""
        self._queue: list[_Entry] = []
        """Heap of what is to be tried."""
        self._under_way: set[str] = set()
        self._open: FireSchedules | None = None
        """What has been put last: it takes more until it is part of a group, so that a group has few of them."""
        self._timer: Timer | None = None
        self._timer_us = 0
        self._look_timer: Timer | None = None
        self._look_us = 0
        self._retention = retention
        self.run_sliced = Slices(lambda step: timers.at(clock.monotonic(), step), clock.monotonic).start
        """For what takes long when it is asked of many schedules."""
        self._looking = self._stale = self._mending = self._forgetting = False
        self._looked = self._mended = clock.monotonic()
        self._forget_at = clock.monotonic() + FORGET_AFTER
        self._declared_since_us = 0
        self.lateness = 0.0
        """By how many seconds the last fire time that this node tried was late when its operation was made."""

    def _now_us(self) -> int:
        return to_us(self._clock.wall())

    def alone(self) -> None:
        """No other node has this store: code that was declared before now does not run any more, unless it is declared again."""
        self._declared_since_us = self._now_us()

    # ---- time ----

    def tick(self) -> None:
        """Do what is due now and then."""
        if self._paused():
            return
        now = self._clock.monotonic()
        if now - self._looked >= LOOK_EVERY:
            self.look()
        if now - self._mended >= MEND_EVERY and not self._mending:
            self._mended = now
            if self.first(MENDING):  # one node is enough, and which one it is changes with who is there
                self._mend()
        if now >= self._forget_at and not self._forgetting:
            self._forget_at = now + FORGET_EVERY
            if self.first(FORGETTING):
                self._forgetting = True
                self._forget("")
        self._try()  # the wall clock may have been stepped

    # ---- what is due soon ----

    def look(self) -> None:
        """Fetch what is due in the next seconds, now or as soon as a look that is under way has ended."""
        if not self.fires:
            return  # what is not fetched is not fired
        if self._looking:
            self._stale = True
        elif not self._paused():
            self._looking = True
            self._looked = self._clock.monotonic()
            self._commits.put(FindDue(self._now_us() + to_us(AHEAD)), self._found, self._not_found)

    def _found(self, upcoming: Upcoming) -> None:
        self._looking = False
        if self._paused():
            return
        self._queue.clear()
        late_us = self._now_us() - to_us(BACKUP)
        for due, next_us in upcoming.due:
            self._enqueue(due, next_us, first=next_us <= late_us or self.first(due.name))
        if upcoming.next_us is not None:
            self._look_at(upcoming.next_us - to_us(AHEAD))
        if self._stale:
            self._stale = False
            self.look()
        self._try()

    def _not_found(self, error: StoreError) -> None:
        del error
        self._looking = False
        self._timers.at(self._clock.monotonic() + AGAIN, self.look)

    def _look_at(self, time_us: int) -> None:
        """Look at a wall time, if not before."""
        if self._look_timer is not None and self._look_timer.function is not None:
            if self._look_us <= time_us:
                return
            self._timers.cancel(self._look_timer)
        self._look_us = time_us
        wait = max(from_us(time_us) - self._clock.wall(), AGAIN)
        self._look_timer = self._timers.at(self._clock.monotonic() + wait, self.look)

    def _enqueue(self, due: Due, next_us: int, *, first: bool) -> None:
        if due.name not in self._under_way:
            try_us = next_us if first else next_us + to_us(BACKUP)
            heapq.heappush(self._queue, _Entry(try_us, next_us, due, first))

    def _arm(self) -> None:
        """Have the next entry tried at its time."""
        if not self._queue:
            return
        try_us = self._queue[0].try_us
        if self._timer is not None and self._timer.function is not None:
            if self._timer_us <= try_us:
                return
            self._timers.cancel(self._timer)
        self._timer_us = try_us
        # A microsecond later: both clocks are floats, and what is due at a time has to be due then.
        wait = max(from_us(try_us + 1) - self._clock.wall(), 0.0)
        self._timer = self._timers.at(self._clock.monotonic() + wait, self._try)

    def _try(self) -> None:
        """Fire what this node is first in line for, and see about the rest."""
        if self._paused():
            return
        now_us = self._now_us()
        mine: list[Due] = []
        others = False
        while self._queue and self._queue[0].try_us <= now_us:
            entry = heapq.heappop(self._queue)
            if not entry.first:
                others = True
            elif entry.due.name not in self._under_way:
                self.lateness = from_us(now_us - entry.next_us)
                mine.append(entry.due)
        self._fire(mine)
        if others:
            self._commits.put(FindDue(now_us - to_us(BACKUP)), self._left_over, lambda _: None)
        self._arm()

    def _left_over(self, upcoming: Upcoming) -> None:
        """Fire what is late: whoever was first in line has not."""
        self._fire([due for due, _ in upcoming.due])

    # ---- firing ----

    def _fire(self, due: Iterable[Due]) -> None:
        """Have schedules fired, together with those that wait for the store already."""
        if self._paused():
            return
        for one in due:
            if one.name in self._under_way:  # it may have been fetched twice
                continue
            operation = self._open
            if operation is None or not operation.open or len(operation.due) >= BATCH:
                operation = self._open = self._operation()
            self._under_way.add(one.name)
            operation.due.append(one)
            operation.rows += 1
            operation.now_us = self._now_us()

    def _operation(self) -> FireSchedules:
        due: list[Due] = []
        operation = FireSchedules(due, 0)
        self._commits.put(operation, self._fired, lambda error: self._not_fired(due, error))
        return operation

    def _fired(self, outcome: dict[str, Fired]) -> None:
        self._under_way.difference_update(outcome)
        horizon_us = self._now_us() + to_us(AHEAD)
        for name, (_, stored, _) in outcome.items():
            next_us = None if stored is None else stored.state.next_us
            if stored is None or next_us is None:
                continue
            if next_us <= horizon_us:
                self._enqueue(_due(stored), next_us, first=self.first(name))
            else:
                self._look_at(next_us - to_us(AHEAD))
        self._try()

    def _not_fired(self, due: Sequence[Due], error: StoreError) -> None:
        del error
        self._under_way.difference_update(one.name for one in due)
        self._timers.at(self._clock.monotonic() + AGAIN, self.look)

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
        self._commits.put(ListSchedules(names), done, failed)

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
