"""Work for runs at its time: alarms, and periodic checks of runs that are parked, stranded, or closed for long.

Timers and timeouts of runs are recorded at their times. The agenda (``storage.agenda``) fetches the runs that have an alarm
soon. A node that writes an earlier alarm adds it by itself. An alarm that rings too early, or twice, changes nothing.

Other code may take on a parked run; no worker can decide a stranded one. Old closed runs are deleted with their histories and
root jobs, in steps of a bounded size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from mainspring.clock import to_us
from mainspring.event_log.interests import NewEvent
from mainspring.event_log.types import RUN_STRANDED, StrandedFields
from mainspring.jobs.model import State
from mainspring.jobs.store import Count
from mainspring.namespaces import DEFAULT
from mainspring.storage.agenda import Agenda
from mainspring.workflows.model import Status, decision_function
from mainspring.workflows.reading import Unread
from mainspring.workflows.store import (
    CountParked,
    FindAlarms,
    FindVersions,
    ForgetRuns,
    RingAlarms,
    SweepEarlySignals,
    UnparkRuns,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.event_log.service import EventLog
    from mainspring.storage.agenda import FetchTimes, Timers
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.reads import Reads
    from mainspring.workflows.changes import RunChanges
    from mainspring.workflows.decider_workers import Build
    from mainspring.workflows.model import Definition
    from mainspring.workflows.observers import Changed
    from mainspring.workflows.store import Alarms as Upcoming
    from mainspring.workflows.store import Versions

ALARM_BATCH: Final = 1000
"""Runs whose alarms one operation rings: the first decisions start before the last alarms are recorded."""
AT_ONCE: Final = 10_000
"""Due runs that one fetch finds."""


class Alarms:
    """Rings the alarms of runs, on a node that calls ``tick`` at least every quarter of a second.

    ``first`` returns whether this node is first in line for a run, named by its id; ``paused`` whether nothing may be written.
    ``waits`` returns whether a run is set aside and not tried again yet, ``aside`` returns how many runs are.
    """

    def __init__(
        self,
        commits: CommitQueue,
        clock: Clock,
        timers: Timers,
        *,
        first: Callable[[str], bool],
        paused: Callable[[], bool],
        fetching: FetchTimes,
        waits: Callable[[int], bool] = lambda _: False,
        aside: Callable[[], int] = lambda: 0,
    ) -> None:
        self._waits = waits
        self._aside = aside
        self._ahead_us = to_us(fetching.ahead)
        self._commits = commits
        self._clock = clock
        self._agenda: Agenda[int] = Agenda(
            clock,
            timers,
            self._find,
            self._ring,
            str,
            first=first,
            paused=paused,
            fetching=fetching,
        )
        self._open: RingAlarms | None = None
        self._added: dict[int, int] = {}
        """The times of alarms that this node has added, by run: most commits leave a run's alarm as it is."""
        self._horizon_us = 0
        """The time up to which ``_added`` counts."""
        self._ringing: set[int] = set()
        """Runs whose alarms are being rung: the outcome has their next ones."""

    @property
    def lateness(self) -> float:
        """The seconds by which the last alarm that this node rang was late."""
        return self._agenda.lateness

    def fetch(self) -> None:
        """Fetch the alarms of the next seconds."""
        self._agenda.fetch()

    def tick(self) -> None:
        """Fetch and ring, as due."""
        self._agenda.tick()

    @property
    def is_empty(self) -> bool:
        """Whether no alarm is due soon."""
        return self._agenda.is_empty

    def skip(self, first_us: int) -> None:
        """Do without the next fetch; see ``storage.agenda.Agenda``."""
        self._agenda.skip(first_us)

    def written(self, alarms: Iterable[tuple[int, int]]) -> None:
        """Add the alarms of runs, by their ids, that this node has just written; 0 is none."""
        ringing = self._ringing
        now_us = to_us(self._clock.wall())
        if not self._horizon_us - self._ahead_us <= now_us <= self._horizon_us:  # earlier: the clock was stepped back
            self._added.clear()
            self._horizon_us = now_us + self._ahead_us
        added = self._added
        new = []
        for run, due_us in alarms:
            if due_us and run not in ringing and added.get(run) != due_us:
                added[run] = due_us
                new.append((run, due_us))
        if new:
            self._agenda.add(new)

    def _find(self, until_us: int, found: Callable[[Upcoming], None], failed: Callable[[StoreError], None]) -> None:
        # Runs that are set aside stay due: they must not fill the answer.
        self._commits.put(FindAlarms(until_us, AT_ONCE + self._aside()), found, failed)

    def _ring(self, due: Iterable[int]) -> None:
        for run in due:
            if self._waits(run):
                self._agenda.done([str(run)])
                continue
            operation = self._open
            if operation is None or not operation.open or len(operation.runs) >= ALARM_BATCH:
                operation = self._open = self._operation()
            operation.runs.append(run)
            self._ringing.add(run)
            operation.rows += 1
            operation.now_us = to_us(self._clock.wall())

    def _operation(self) -> RingAlarms:
        runs: list[int] = []
        operation = RingAlarms(runs, 0)
        self._commits.put(operation, lambda outcome: self._rung(runs, outcome), lambda _: self._not_rung(runs))
        return operation

    def _rung(self, runs: Sequence[int], outcome: dict[int, int]) -> None:
        for run in runs:
            self._added.pop(run, None)
        self._end(runs)
        self.written(outcome.items())

    def _not_rung(self, runs: Sequence[int]) -> None:
        self._end(runs)
        self._agenda.fetch_later()

    def _end(self, runs: Sequence[int]) -> None:
        self._ringing.difference_update(runs)
        self._agenda.done(map(str, runs))


LOOK_INTERVAL: Final = 5.0
"""Seconds between two looks for parked runs, and for definitions that other nodes have added."""
SHARED_COUNT_INTERVAL: Final = 15.0
"""Seconds between two counts of open and stranded runs on a store that nodes share: a count is a transaction of each node."""
UNPARK_INTERVAL: Final = 60.0
"""Seconds between two attempts to unpark as many runs of a version as before for a build that took none of them on."""
BATCH: Final = 100
"""Runs that one operation unparks or forgets."""
STRANDED_AFTER: Final = 60.0
"""Seconds without a worker of its version after which a run that needs a decision is stranded."""
WARNING_INTERVAL: Final = 60.0
"""Seconds between two warnings about stranded runs."""
NOTE_INTERVAL: Final = 60.0
"""Seconds between two notes that runs of a version are stranded."""
NOTED_FOR_US: Final = 240_000_000
"""Microseconds after such a note for which others belong to the same time: its end and a new node take a minute each."""
STRANDED_KEY: Final = b"stranded runs of "
FORGET_INTERVAL: Final = 3600.0
"""Seconds between two deletions of closed runs."""
FORGET_DELAY: Final = 60.0
"""Seconds until the first one."""
FORGET_KEY: Final = "closed runs"
"""The name for which nodes choose the deleting one."""

log = structlog.get_logger("mainspring.workflows")


class Stranded(NamedTuple):
    """Runs of one version that need a decision, without a worker."""

    namespace: str
    type: str
    version: str
    runs: int
    since: float
    """Monotonic time."""


def stranded_event(runs: Stranded) -> NewEvent:
    """Return the event of stranded runs."""
    fields = StrandedFields(version=runs.version, runs=runs.runs)
    return NewEvent(RUN_STRANDED, runs.namespace, runs.type, "", 0, fields)


class Watch:
    """Looks after the runs of a node.

    ``builds`` returns the code of the connected workers, ``definitions`` all versions of workflows; ``keep`` is called with those
    that were read again. ``served`` returns whether a function of decisions may have a worker at another node.
    ``first`` returns whether this node is the first in line for a name; ``paused`` whether nothing may be written. ``retention``
    is in seconds. ``aside`` returns how many runs are set aside: those stay at the front of what a transaction takes.
    ``events`` records that runs are stranded.
    """

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        *,
        builds: Callable[[], Iterable[Build]],
        definitions: Callable[[], Iterable[Definition]],
        keep: Callable[[Sequence[Definition]], None],
        served: Callable[[bytes], bool],
        first: Callable[[str], bool],
        paused: Callable[[], bool],
        retention: float,
        is_shared: bool,
        aside: Callable[[], int] = lambda: 0,
        events: EventLog | None = None,
    ) -> None:
        self._aside = aside
        self._events = events
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._builds = builds
        self._definitions = definitions
        self._keep = keep
        self._served = served
        self._is_shared = is_shared
        self._first = first
        self._paused = paused
        self._retention = retention
        self.parked: dict[tuple[str, str, str], int] = {}
        """The parked runs by namespace, type and version."""
        self.open: dict[tuple[str, str], int] = {}
        """The open runs by namespace and type, as of the last look."""
        self._newly_parked: set[tuple[str, str, str]] = set()
        """The definitions of runs that were parked since the last tick."""
        self._looked = clock.monotonic()
        self._count_at = clock.monotonic()
        self._left: dict[Build, tuple[int, float]] = {}
        """For builds that took on no run: how many were parked, and until when this is not tried again."""
        self._forgetting = False
        self._forget_at = clock.monotonic() + FORGET_DELAY
        self._unserved: dict[bytes, Stranded] = {}
        """Runs that need a decision, without a worker, by the function of their decisions: since just now or for long."""
        self._warned = -WARNING_INTERVAL
        self._noted: dict[bytes, float] = {}
        """When this node has noted last that runs are stranded, in monotonic time."""

    def tick(self) -> None:
        """Check, as due; call it about every second."""
        now = self._clock.monotonic()
        if now - self._looked >= LOOK_INTERVAL:
            self._looked = now
            self._look()
        if self._paused():
            return
        self._try_other_builds()
        if now >= self._forget_at and not self._forgetting:
            self._forget_at = now + FORGET_INTERVAL
            if self._first(FORGET_KEY):
                self._forgetting = True
                self._forget(sorted({DEFAULT, *(one.namespace for one in self._definitions())}))

    # ---- parked runs ----

    def load(self, then: Callable[[], None], failed: Callable[[StoreError], None]) -> None:
        """Count the parked runs once; later, `changed` counts. There may be very many."""

        def counted(parked: dict[tuple[str, str, str], int]) -> None:
            self.parked = parked
            then()

        self._reads.ask(CountParked(), counted, failed)

    def changed(self, run: Changed) -> None:
        """Count a run that a transaction has parked, or that is parked no longer."""
        is_parked = run.parked_us > 0
        if is_parked is not run.was_parked:
            version = (run.namespace, run.type, run.version)
            number = self.parked.get(version, 0) + (1 if is_parked else -1)
            if is_parked:
                self._newly_parked.add(version)
            if number > 0:
                self.parked[version] = number
            else:
                self.parked.pop(version, None)

    def _try_other_builds(self) -> None:
        """Let newly parked runs go on with other connected builds: in a rolling deploy, old code may meet runs of new code."""
        parked, self._newly_parked = self._newly_parked, set()
        if parked:
            for build in set(self._builds()):
                if build[:3] in parked:
                    self.build_connected(build)

    def _look(self) -> None:
        """Let parked runs go on for which another build is connected."""
        now = self._clock.monotonic()
        if now >= self._count_at:
            self._count_at = now + (SHARED_COUNT_INTERVAL if self._is_shared else 0.0)
            self._count()
        self._left = {build: left for build, left in self._left.items() if left[1] > now}
        if self._is_shared:
            self._reads.ask(FindVersions(), self._found_of_others, lambda _: None)
        else:
            self._unpark_others()

    def _found_of_others(self, versions: Versions) -> None:
        """Take what other nodes have changed: they park runs, too."""
        self._keep(versions.definitions)
        self.parked = versions.parked
        self._unpark_others()

    def _unpark_others(self) -> None:
        if self._paused():
            return
        for build in set(self._builds()):
            # Each attempt is a transaction. Usually the runs are there still that this very build has parked.
            left = self._left.get(build)
            if left is None or left[0] != self.parked.get((build[0], build[1], build[2])):
                self.build_connected(build)

    def build_connected(self, build: Build) -> None:
        """Let the parked runs of a build's version go on with it at once, unless it has failed at them.

        The look repeats it, for runs that are parked while their next build connects.
        """
        *version, digest = build
        definition = (version[0], version[1], version[2])
        if self.parked.get(definition) and not self._paused():
            self._unpark(definition, digest)

    def _unpark(self, definition: tuple[str, str, str], build: str) -> None:
        parked = self.parked.get(definition, 0)

        def unparked(number: int) -> None:
            if number:
                log.info("parked runs go on with other code", type=definition[1], version=definition[2], runs=number)
                self._left.pop((*definition, build), None)
            else:
                self._left[*definition, build] = parked, self._clock.monotonic() + UNPARK_INTERVAL
            if number >= BATCH and not self._paused():
                self._unpark(definition, build)

        limit = BATCH + self._aside()
        operation = UnparkRuns(to_us(self._clock.wall()), definition=definition, build=build, limit=limit)
        operation.urgent = False
        self._commits.put(operation, unparked)

    # ---- open and stranded runs ----

    def _count(self) -> None:
        """Count open runs, and decisions without a worker: those of versions that no connected worker has."""
        connected = {build[:3] for build in self._builds()}
        functions: dict[bytes, tuple[str, str]] = {}
        unserved: dict[bytes, Definition] = {}
        for one in self._definitions():
            functions[one.function] = (one.namespace, one.name)
            function = decision_function(one.namespace, one.name, one.version)
            if (one.namespace, one.name, one.version) not in connected and not self._served(function):
                unserved[function] = one

        def counted(outcome: dict[tuple[bytes, int, int], int]) -> None:
            self.open = dict.fromkeys(functions.values(), 0)
            pending: dict[bytes, int] = {}
            for (function, state, _), number in outcome.items():
                if function in functions and state == State.LEASED:  # a held job is the root job of an open run
                    self.open[functions[function]] += number
                elif function in unserved and state == State.PENDING:
                    pending[function] = pending.get(function, 0) + number
            now, before = self._clock.monotonic(), self._unserved
            self._unserved = {
                function: Stranded(
                    one.namespace,
                    one.name,
                    one.version,
                    number,
                    before[function].since if function in before else now,
                )
                for function, one in unserved.items()
                if (number := pending.get(function, 0))
            }
            self._warn()
            if not self._paused():
                self._note_stranded()

        if functions:
            operation = Count([*functions, *unserved])
            operation.urgent = False
            self._commits.put(operation, counted)

    def stranded(self) -> list[Stranded]:
        """Return the stranded runs, as of the last look."""
        now = self._clock.monotonic()
        return [one for one in self._unserved.values() if now - one.since >= STRANDED_AFTER]

    def _note_stranded(self) -> None:
        """Note that runs are stranded, once a minute, if this node is the first in line: their event comes at the begin."""
        now = self._clock.monotonic()
        if self._events is None:
            return
        for function in self._noted.keys() - self._unserved.keys():
            del self._noted[function]
            self._events.end(STRANDED_KEY + function)
        for function, one in self._unserved.items():
            is_due = (
                now - one.since >= STRANDED_AFTER and now - self._noted.get(function, -NOTE_INTERVAL) >= NOTE_INTERVAL
            )
            if is_due and self._first(f"stranded {one.namespace} {one.type} {one.version}"):
                self._noted[function] = now
                self._events.note(STRANDED_KEY + function, stranded_event(one), NOTED_FOR_US)

    def _warn(self) -> None:
        now = self._clock.monotonic()
        if now - self._warned < WARNING_INTERVAL:
            return
        for one in self.stranded():
            self._warned = now
            log.warning(
                "runs need a decision, and no worker of their version is connected",
                type=one.type,
                version=one.version,
                runs=one.runs,
                seconds=round(now - one.since),
                do=f"start a worker whose App has {one.type} in version {one.version}, or end the runs with "
                "`mainspring workflows terminate`",
            )

    # ---- retention ----

    def _forget(self, namespaces: Sequence[str]) -> None:
        """Delete closed runs of the namespaces, then signals to deleted jobs, in steps that are parts of separate groups."""

        def forgotten(number: int) -> None:
            if self._paused():
                self._forgetting = False
            elif number:
                self._forget(namespaces)
            elif namespaces[1:]:
                self._forget(namespaces[1:])
            else:
                self._sweep_early(0)

        before_us = to_us(self._clock.wall() - self._retention)
        limit = BATCH + self._aside()
        self._commits.put(ForgetRuns(before_us, limit, namespace=namespaces[0]), forgotten, self._not_forgotten)

    def _sweep_early(self, after: int) -> None:
        def swept(last: int) -> None:
            if last and not self._paused():
                self._sweep_early(last)
            else:
                self._forgetting = False

        self._commits.put(SweepEarlySignals(after, BATCH), swept, self._not_forgotten)

    def _not_forgotten(self, error: StoreError) -> None:
        del error  # the next look repeats it
        self._forgetting = False


EVENTS_PER_STEP: Final = 20_000
"""Events after which a transaction deletes no further run: each may have been a row of its own."""


async def forget_runs(changes: RunChanges, operation: ForgetRuns) -> int:
    """Delete old closed runs; see `ForgetRuns`."""
    tables = changes.tables
    runs: list[int] = []
    roots: list[int] = []
    events = 0
    for row in await tables.closed_runs(operation.namespace, operation.before_us, operation.rows):
        if row.unread:  # its status decides on its root job
            changes.set_aside(Unread(row, row.unread))
            continue
        runs.append(row.id)
        if row.status is not Status.CONTINUED_AS_NEW:  # the root job stays as long as the last run of its chain
            roots.append(row.root)
        events += row.events
        if events >= EVENTS_PER_STEP:
            break
    if runs:
        await tables.forget(runs)
        await tables.forget_roots(roots)
    return len(runs)
