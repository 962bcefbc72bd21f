"""The schedules service of one node: it fires due schedules, and reads and changes schedules for clients.

Clients have names as users know them; the store has the keys of their namespaces. Rendezvous hashing chooses the node that
fires a schedule first.

`DueFires` takes due schedules into operations that fire them: in turns over their namespaces, at a pace. Every operation of a
group waits for the fires in it. So while clients give the node other work, one operation fires so few schedules that its group
takes little longer. Fires then have a third of the node's time or less, and a schedule that is due more often than that is late.
Its namespace bears that alone: due schedules of other namespaces take turns with it. A node without other work belongs to the
fires.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
from msgspec.structs import replace

from mainspring.access.caller import LOCAL
from mainspring.access.idempotency import commit_keyed
from mainspring.callbacks import CallInProgress, in_slices, shielded
from mainspring.clock import to_us
from mainspring.errors import ConflictError, MainspringError, UsageError
from mainspring.namespaces import Turns, split_text
from mainspring.schedules import catalogue, reconcile, rules, triggers
from mainspring.schedules.model import Origin
from mainspring.schedules.reconcile import fault_of
from mainspring.schedules.specification import with_names
from mainspring.schedules.store import (
    Change,
    Declare,
    Due,
    FindDue,
    FireSchedules,
    ForgetFires,
    ListSchedules,
    RepairSchedules,
    SaveSchedules,
    TriggerSchedule,
)
from mainspring.storage.agenda import Agenda, Pace, Steps
from mainspring.storage.reads import Kind, SetAside
from mainspring.turns_of_loop import LongWork

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Sequence

    from mainspring.access.caller import Act, Caller
    from mainspring.access.idempotency import KeyedAct
    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.jobs.store import Signs
    from mainspring.schedules.model import Fire, Schedule
    from mainspring.schedules.reconcile import Code, Stored
    from mainspring.schedules.store import Declared, Fired, Forgotten, Refused, Saved
    from mainspring.storage.agenda import Timers, Upcoming
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.reads import Reads


BESIDE: Final = Steps(first=2, smallest=1, largest=1000, aim=500)
"""Fire times of one operation beside other work."""
ALONE: Final = Steps(first=1000, smallest=100, largest=1000, aim=1, shortest=1.0, longest=1.0)
"""Without other work. The first request of a client after that waits for such an operation."""
QUIET: Final = 5.0
"""Seconds after the last request of a client until the node counts as without other work: a client that sends one request after
the other must not meet a long operation each time."""


class DueFires:
    """Fires schedules that are due; one operation at a time waits for the store.

    ``fired`` receives the outcome of an operation, ``not_fired`` the schedules of one that failed. ``next_turn`` is called when
    ``fire`` may begin the next operation after a pause.
    """

    def __init__(
        self,
        commits: CommitQueue,
        clock: Clock,
        timers: Timers,
        now_us: Callable[[], int],
        fired: Callable[[dict[str, Fired]], None],
        not_fired: Callable[[Sequence[Due]], None],
        next_turn: Callable[[], None],
    ) -> None:
        self._commits = commits
        self._clock = clock
        self._timers = timers
        self._now_us = now_us
        self._ended, self._failed, self._next_turn = fired, not_fired, next_turn
        self._due: Turns[Due] = Turns()
        """Due schedules that are in no operation yet."""
        self._operation: FireSchedules | None = None
        """The operation that waits for the store; schedules are added until it is part of a group."""
        self._size = 0
        """The most fire times of that operation."""
        self._is_pausing = False
        self._beside, self._alone = Pace(BESIDE), Pace(ALONE)
        self._is_alone = True
        self._requests = commits.requests
        self._busy_until = clock.monotonic()

    def add(self, due: Due) -> None:
        """Add a schedule to those of its namespace. Call ``fire`` afterwards."""
        self._due.add(split_text(due.name)[0], due)

    def clear(self) -> list[str]:
        """Drop the schedules that are in no operation yet; return their names."""
        return [one.name for one in self._due.clear()]

    def fire(self) -> None:
        """Put due schedules into the next operation, as far as it has room."""
        operation = self._operation
        if self._is_pausing or not self._due or (operation is not None and not operation.open):
            return
        if operation is None:
            operation = self._begin()
        while self._due and len(operation.due) < self._size:
            operation.due.append(self._due.pop())
        operation.rows = len(operation.due)
        operation.limit = max(self._size // operation.rows, 1)
        operation.now_us = self._now_us()
        # Those that are late by the pace do not begin a group: they go with the next one of a client.
        operation.urgent = self._is_alone or not self._due
        if operation is not self._operation:
            self._operation = operation
            self._commits.put(operation, self._fired, self._not_fired)

    def _begin(self) -> FireSchedules:
        now, requests = self._clock.monotonic(), self._commits.requests
        if requests != self._requests:
            self._requests, self._busy_until = requests, now + QUIET
        self._is_alone = now >= self._busy_until
        pace = self._alone if self._is_alone else self._beside
        pace.begin(now, self._commits.groups)
        self._size = pace.size
        return FireSchedules([], 0)

    def _fired(self, outcome: dict[str, Fired]) -> None:
        operation = self._operation
        assert operation is not None, "it has just ended"
        self._operation = None
        now, groups = self._clock.monotonic(), self._commits.groups
        if self._is_alone:
            self._alone.after(operation.fires, operation.seconds, now, groups)
        else:
            pause = self._beside.after(operation.fires, operation.seconds, now, groups)
            self._is_pausing = True
            self._timers.at(now + pause.shared, self._resume)
        self._ended(outcome)

    def _not_fired(self, error: StoreError) -> None:
        del error  # the next fetch finds its schedules again
        operation = self._operation
        assert operation is not None, "it has just failed"
        self._operation = None
        self._failed(operation.due)

    def _resume(self) -> None:
        self._is_pausing = False
        self._next_turn()


def first_in_line(name: str, terms: tuple[int, ...]) -> int:
    """Return the term of the node that fires a schedule if all nodes see the same live terms, in one order; 0 without terms.

    This only saves duplicate work: the store ensures that a fire time is decided once. Each node gets about the same number of
    schedules, and a node that joins or leaves moves only its own. A number is that of a run. Thousands of runs may be due in a
    second, each for a moment, so that it is enough to divide them.
    """
    if name.isdecimal() and terms:
        return terms[(int(name) * _SPREAD & 0xFFFF_FFFF_FFFF_FFFF) * len(terms) >> 64]
    return _first_by_hash(name, terms)


_SPREAD: Final = 0x9E3779B97F4A7C15
"""An odd number whose multiples, modulo 2**64, are spread evenly."""


@lru_cache(maxsize=50_000)
def _first_by_hash(name: str, terms: tuple[int, ...]) -> int:
    return min(terms, key=lambda term: (blake2b(f"{term}\0{name}".encode(), digest_size=8).digest(), term), default=0)


_log = structlog.get_logger("mainspring.schedules")

SCHEDULE = Kind("schedule", "replace the schedule, or remove it; a node that can read it goes on firing it")
DUE_AT_ONCE = 10_000
"""Due schedules that one fetch finds."""
REPAIR_INTERVAL = 5.0
"""Seconds between two repairs."""
REPAIR_KEY = "mending"
"""The name for which nodes choose the repairing one, as if it were a schedule. All versions must use the same."""
FORGET_INTERVAL = 3600.0
"""Seconds between two deletions of old rows of all schedules."""
FORGET_DELAY = 60.0
"""Seconds until the first one."""
FORGET_KEY = "forgetting"
"""The name for which nodes choose the deleting one."""
BATCH = 250
"""Schedules that one operation repairs after the clock was set back."""
DECLARATION_LIFETIME = 60.0
"""Seconds for which code counts as running after a declaration; nodes and workers repeat it more often."""
RECONCILE_RETRIES = 5
CLOCK_STEP = 1.0
"""Seconds by which the wall clock goes back against the monotonic one if it was set back; smaller differences are corrections of
its pace."""


class Declaration(NamedTuple):
    """The result of a declaration of schedules by code."""

    governs: bool
    """Whether this code governs; otherwise newer code of the App runs, and nothing was changed."""
    changes: list[reconcile.Change]


class Deployed(NamedTuple):
    """The code of an App that runs."""

    governs: bool
    """Whether its declarations count; otherwise a newer version of it also runs."""
    live_apps: set[str]
    """The Apps whose code runs, of those that were looked at."""


class ScheduleService:
    """The schedules slice of a node. It uses the node's timers; the node calls ``tick`` at least every quarter of a second.

    ``paused`` returns whether the node drains or has no lease: then it fires nothing. ``first`` returns whether this node is the
    first to fire a schedule. It is None if no other node shares the store: then code that was declared before now counts as
    running only if it is declared again. ``retention`` is the minimum age in seconds of deleted history. If ``fires`` is False,
    the node fires no due times. It still stores changes and declarations, runs schedules by hand, and starts the children and
    waiting rows of ended runs, because the transaction that ends a run includes these. ``set_aside`` has the schedules that this
    node cannot decide.
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
        set_aside: SetAside | None = None,
    ) -> None:
        self.fires = fires
        self._commits = commits
        self._reads = reads
        self._set_aside = SetAside(clock) if set_aside is None else set_aside
        self._clock = clock
        self._timers = timers
        self._paused = paused
        self._first = first or (lambda _: True)
        self._agenda = Agenda(
            clock,
            timers,
            self._find_due,
            self._fire,
            lambda due: due.name,
            first=self._first,
            paused=lambda: paused() or not self.fires,
        )
        """Schedules that are due soon."""
        self._due = DueFires(commits, clock, timers, self._now_us, self._fired, self._not_fired, self._fire_next)
        self._retention = retention
        self.run_sliced = LongWork(lambda step: timers.at(clock.monotonic(), step), clock.monotonic).start
        """Runs work on many schedules in slices."""
        self._pace: float | None = None
        """Wall time minus monotonic time at the last tick; None before the first one, and if states have to be looked at."""
        self._repairing = self._forgetting = self._rewinding = False
        self._repaired = clock.monotonic()
        self._forget_at = clock.monotonic() + FORGET_DELAY
        self._refused = False
        """Whether the store has refused to look at the states after the clock was set back."""
        self._is_shared = first is not None
        self._declared_since_us = 0 if first is not None else self._now_us()

    @property
    def lateness(self) -> float:
        """The seconds by which the last fire time of this node was late when its operation was created."""
        return self._agenda.lateness

    def _now_us(self) -> int:
        return to_us(self._clock.wall())

    # ---- time ----

    def suspend(self) -> None:
        """Fire no due times until ``resume``."""
        self.fires = False

    def resume(self) -> None:
        """Fire due times again."""
        self.fires = True
        self.fetch()

    def tick(self) -> None:
        """Repair, delete old history and fire, as due."""
        if self._paused():
            return
        now = self._clock.monotonic()
        if self.fires and not self._rewinding:
            self._look_at_clock(now)
        if now - self._repaired >= REPAIR_INTERVAL and not self._repairing:
            self._repaired = now
            if self._first(REPAIR_KEY):  # one node is enough; membership changes choose another
                self._repair()
        if now >= self._forget_at and not self._forgetting:
            self._forget_at = now + FORGET_INTERVAL
            if self._first(FORGET_KEY):
                self._forgetting = True
                self._forget("")
        if self.fires:
            self._agenda.tick()

    # ---- firing ----

    def fetch(self) -> None:
        """Fetch the schedules that are due in the next seconds, now or as soon as the fetch under way has ended."""
        if self.fires:  # without a fetch nothing fires
            self._agenda.fetch()

    def awaits_times(self) -> bool:
        """See `jobs.sharing.Sharing.add_reader`."""
        return self._agenda.is_empty

    def read_signs(self, signs: Signs) -> None:
        """See `jobs.sharing.Sharing.add_reader`."""
        if self.fires and signs.fire_us is not None:
            self._agenda.skip(signs.fire_us)

    def _find_due(
        self, until_us: int, found: Callable[[Upcoming[Due]], None], failed: Callable[[StoreError], None]
    ) -> None:
        # Schedules that are set aside stay due: they must not fill the answer.
        self._commits.put(FindDue(until_us, DUE_AT_ONCE + self._set_aside.number(SCHEDULE)), found, failed)

    def _fire(self, due: Iterable[Due]) -> None:
        """Fire schedules, in turns over their namespaces, together with those that wait for the store already."""
        for one in due:
            if self._set_aside.waits(SCHEDULE, one.name):
                self._agenda.done([one.name])
            else:
                self._due.add(one)
        self._fire_next()

    def _fire_next(self) -> None:
        """Fire due schedules as the pace permits, or none if this node may not: the next fetch finds them again."""
        if self.fires and not self._paused():
            self._due.fire()
        else:
            self._agenda.done(self._due.clear())

    def _fired(self, outcome: dict[str, Fired]) -> None:
        self._agenda.done(outcome)
        for name, one in outcome.items():
            if one.fault:
                self._set_aside.note(SCHEDULE, name, one.fault)
        self._set_aside.handled(SCHEDULE, (name for name, one in outcome.items() if not one.fault))
        stored = [one.stored for one in outcome.values() if one.stored is not None]
        self._agenda.add((_due(one), one.state.next_us) for one in stored if one.state.next_us is not None)
        self._fire_next()

    def _not_fired(self, due: Sequence[Due]) -> None:
        self._agenda.done(one.name for one in due)
        self._agenda.fetch_later()
        self._fire_next()

    def _repair(self) -> None:
        def repaired(number: int) -> None:
            self._repairing = False
            if number:
                self.fetch()  # versions have changed

        def not_repaired(error: StoreError) -> None:
            del error
            self._repairing = False

        self._repairing = True
        self._commits.put(RepairSchedules(self._now_us()), repaired, not_repaired)

    # ---- a clock that was set back ----

    def _look_at_clock(self, now: float) -> None:
        """If the clock was set back, or may have been before this node's start, repair what it has left in schedules."""
        before, self._pace = self._pace, self._clock.wall() - now
        if before is not None and self._pace >= before - CLOCK_STEP:
            return
        if before is None and self._is_shared and not self._refused:
            return  # other nodes look, and this one may not have read the store's clock yet
        self._refused = False
        if before is not None:
            _log.warning("the clock was set back; schedules go on by it", seconds=round(before - self._pace, 3))
        if self._first(REPAIR_KEY):
            CallInProgress(self._rewind(0 if before is None else to_us(before + now)), _ignore, _ignore)

    async def _rewind(self, before_us: int) -> None:
        self._rewinding = True
        try:
            stored = await self.find()
            names = await in_slices(self.run_sliced, _rewound(stored, self._now_us(), before_us))
            for start in range(0, len(names), BATCH):
                await self.save([Change("rewind", name, before_us=before_us) for name in names[start : start + BATCH]])
        except MainspringError:
            self._pace, self._refused = None, True  # look again
        finally:
            self._rewinding = False

    # ---- old history ----

    def _forget(self, after: str) -> None:
        """Delete old rows of the schedules whose names come after one, in steps that are parts of separate groups."""

        def forgotten(outcome: Forgotten) -> None:
            if outcome.after is None or self._paused():
                self._forgetting = False
            else:
                self._forget(outcome.after)

        def not_forgotten(error: StoreError) -> None:
            del error
            self._forgetting = False

        now_us = self._now_us()
        operation = ForgetFires(after, now_us - to_us(self._retention), now_us=now_us)
        self._commits.put(operation, forgotten, not_forgotten)

    # ---- reads ----

    async def find(self, names: Sequence[str] | None = None) -> list[Stored]:
        """Return schedules: those named, or all."""
        query = ListSchedules(limit=sys.maxsize, names=None if names is None else tuple(names))
        return (await self._reads.read_pages(query)).items

    # ---- changes ----

    @shielded
    async def save(
        self, changes: Sequence[Change], act: Act | None = None, caller: Caller = LOCAL
    ) -> dict[str, Stored | None]:
        """Change schedules, all of them or none, and return them.

        Raises UsageError, NotFoundError, ConflictError and StoreError.
        """
        now_us = self._now_us()
        checked = await in_slices(self.run_sliced, _checked(changes, now_us))
        operation = SaveSchedules(checked, now_us, spans=caller.spans_namespaces)
        operation.act = act
        saved: Saved = await self._commits.committed(operation)
        if saved.error is not None:
            raise saved.error
        self.fetch()
        return saved.schedules

    async def trigger(
        self, name: str, act: Act | None = None, keyed_act: KeyedAct | None = None
    ) -> Fire | Refused | None:
        """Run a schedule now, and return the row; None if the schedule does not exist. Raises RepeatedError."""
        operation = TriggerSchedule(name, self._now_us())
        operation.act, operation.keyed_act = act, keyed_act
        row: Fire | Refused | None = await commit_keyed(self._commits, operation)
        return row

    # ---- declarations by code ----

    @shielded
    async def declare(
        self,
        app: str,
        declared: Collection[Schedule],
        act: Act | None = None,
        *,
        code: Code = reconcile.UNKNOWN_CODE,
        caller: Caller = LOCAL,
    ) -> Declaration:
        """Apply the declarations of an App's code if that code governs; see ``reconcile``. Repeat it while the code runs.

        Raises UsageError if other code of the name runs, and ForbiddenError if the App has schedules of functions for which the
        ``caller`` has no rights.
        """
        declaring = _Declaring(app, declared, code, caller, act)
        for _ in range(RECONCILE_RETRIES):
            with suppress(ConflictError):  # another request was first
                return await self._declare(declaring)
        return await self._declare(declaring)

    async def _declare(self, declaring: _Declaring) -> Declaration:
        code, declared, mine = declaring.code, declaring.declared, reconcile.digest(declaring.declared)
        stored = {one.schedule.name: one for one in await self.find()}
        app = reconcile.name_of(declaring.app, declared, code, stored)
        reconcile.check_app(app, stored.values(), declaring.caller)
        if reconcile.is_of_other_code(app, declared, code, stored):
            found: list[Declared] = await self._commits.committed(Declare(app, b"", self._now_us()))
            if self._live(found) - {(app, mine)}:
                raise UsageError(reconcile.refusal(app, stored))
        deployed = await self.deploy(app, mine, reconcile.owners(app, declared, stored))
        if not deployed.governs:
            return Declaration(governs=False, changes=[])
        compared = _compared(declaring, app, stored, deployed.live_apps)
        declaration, changes = await in_slices(self.run_sliced, compared)
        if changes:
            act = declaring.act and replace(declaring.act, after=_names(declaration.changes))
            await self.save(changes, act, declaring.caller)
        return declaration

    async def deploy(self, app: str, digest: bytes, others: Sequence[str] = ()) -> Deployed:
        """Record that code of an App runs, with a digest of what it declares; return whether it governs, and which Apps run.

        Apps have names of their own for each kind of things that they declare. ``others`` are further Apps to look at.
        """
        declarations: list[Declared] = await self._commits.committed(Declare(app, digest, self._now_us(), others))
        live = self._live(declarations)
        deployments = [one.deployment for one in declarations]
        (me,) = (one for one in deployments if (one.app, one.digest) == (app, digest))
        governs = reconcile.governs(me, deployments, {digest for name, digest in live if name == app})
        return Deployed(governs, {name for name, _ in live})

    def _live(self, declarations: Iterable[Declared]) -> set[tuple[str, bytes]]:
        """Return the Apps and digests of the code that runs, as far as it was declared."""
        now_us, lifetime_us = self._now_us(), to_us(DECLARATION_LIFETIME)
        since_us = max(now_us - lifetime_us, min(self._declared_since_us, now_us))
        # Later than now: the clock was ahead. Code that still runs declares them again.
        seen_us = range(since_us, now_us + lifetime_us)
        return {(one.deployment.app, one.deployment.digest) for one in declarations if one.last_seen_us in seen_us}


class _Declaring(NamedTuple):
    """A declaration of schedules by code, as it was requested."""

    app: str
    declared: Collection[Schedule]
    code: Code
    caller: Caller
    act: Act | None


def _ignore(_: object) -> None:
    """Continue without the outcome."""


def _rewound(stored: Iterable[Stored], now_us: int, before_us: int) -> Generator[None, None, list[str]]:
    """Return the names of the schedules that a clock that was set back has left in a state to repair."""
    names = []
    for one in stored:
        if not fault_of(one) and rules.rewound(one.schedule, one.state, now_us, before_us) is not one.state:
            names.append(one.schedule.name)
        yield
    return names


def _checked(changes: Iterable[Change], now_us: int) -> Generator[None, None, list[Change]]:
    """Return checked changes with their first fire times, which takes long for many. Raises UsageError."""
    checked: list[Change] = []
    for change in changes:
        schedule = change.schedule
        if schedule is not None:
            catalogue.check(with_names(schedule))
            change = change._replace(first_us=triggers.first(schedule, now_us))
        checked.append(change)
        yield
    return checked


def _compared(
    declaring: _Declaring, app: str, stored: dict[str, Stored], live_apps: Collection[str]
) -> Generator[None, None, tuple[Declaration, list[Change]]]:
    """Return what a declaration that governs does, and the changes that it needs."""
    declared = {schedule.name: schedule for schedule in declaring.declared}
    declaration = Declaration(governs=True, changes=[])
    if app != declaring.app:
        declaration.changes.append(reconcile.other_code(declaring.app, app, stored, declaring.caller))
    changes: list[Change] = []
    for one in reconcile.compare(app, declaring.declared, stored, declaring.code, live_apps):
        if one is not None:
            declaration.changes.append(one)
            changes += _changes(app, one, declared.get(one.name), stored)
        yield
    return declaration, changes


def _due(stored: Stored) -> Due:
    return Due(stored.schedule.name, stored.state.version)


def _changes(
    app: str, difference: reconcile.Change, declared: Schedule | None, stored: dict[str, Stored]
) -> Iterable[Change]:
    """Return the change that a difference needs, if any."""
    name, before = difference.name, stored.get(difference.name)
    if difference.kind is reconcile.Kind.REMOVED:
        yield Change("remove", name, before=before)
    elif difference.kind is not reconcile.Kind.LEFT and declared is not None:
        digest = reconcile.digest([declared])
        yield Change("put", name, None, difference.after, Origin.CODE, app, digest, before=before)


def _names(changes: Iterable[reconcile.Change]) -> dict[str, list[str]]:
    """Return the names of changed schedules, by kind, as the audit shows them."""
    names: dict[str, list[str]] = {}
    for one in changes:
        if one.kind is not reconcile.Kind.LEFT:
            names.setdefault(one.kind.value, []).append(split_text(one.name)[1])
    return names
