"""The workflows service of one node: it begins runs, rings their alarms, and passes requests of clients to them.

The requests of clients are signals, cancellation, termination, and letting parked runs go on. Requests that come at the same
time are gathered into one operation.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from mainspring.access.idempotency import KeyedAct, commit_keyed
from mainspring.callbacks import Callback, shielded
from mainspring.clock import to_us
from mainspring.errors import ConflictError, UsageError
from mainspring.jobs.model import DECISIONS, Options
from mainspring.jobs.roots import Stored
from mainspring.namespaces import ANY
from mainspring.storage.agenda import FETCH_TIMES, FetchTimes
from mainspring.storage.reads import REMEDY, Kind, SetAside
from mainspring.workflows.decider_workers import Builds, DeciderWorkers
from mainspring.workflows.decision_intake import CachedRuns, DecisionIntake
from mainspring.workflows.definitions import Definitions, VersionTable
from mainspring.workflows.hold_looks import LOOK_KEY as HOLDS
from mainspring.workflows.hold_looks import HoldLooks
from mainspring.workflows.model import Key, Limits, decisions_of, decode_about, step_key
from mainspring.workflows.observers import LongHistories, NewlyParked
from mainspring.workflows.outbox import LOOK_KEY as ERRANDS
from mainspring.workflows.outbox import ErrandLoop
from mainspring.workflows.reading import LatestEvents
from mainspring.workflows.sent_signals import SignalLoop
from mainspring.workflows.store import (
    BeginRuns,
    BeginWaiting,
    Begun,
    FillPlaces,
    ForkRun,
    MoveRun,
    PauseRun,
    ReadHistory,
    RequestCancelRun,
    ResumeRun,
    ShowRun,
    SignalRuns,
    Start,
    TerminateRun,
    UnparkRuns,
)
from mainspring.workflows.user_starts import UserStarts
from mainspring.workflows.watch import BATCH, Alarms, Watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping, Sequence

    from mainspring.access.caller import Act
    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.event_log.service import EventLog
    from mainspring.jobs.held import Held, Worker
    from mainspring.jobs.model import Job
    from mainspring.jobs.roots import Joined
    from mainspring.jobs.run_places import Filled
    from mainspring.jobs.service import JobService
    from mainspring.jobs.store import Signs
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.engine import Operation, Page
    from mainspring.storage.reads import Reads
    from mainspring.workflows.decider_workers import Build
    from mainspring.workflows.forking import Change
    from mainspring.workflows.history import ChildPolicy, Event
    from mainspring.workflows.observers import Changed
    from mainspring.workflows.reading import Tail, Unread
    from mainspring.workflows.requests import Failed, Reached, Signal
    from mainspring.workflows.store import Forked, ListRuns, Moved, Shown, ShownRun

T = TypeVar("T")


class Gathered(Generic[T]):
    """The callers of an operation to which several requests were added."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self.callers: list[tuple[Callable[[Any], None], Failed]] = []

    def add(self, item: T, done: Callable[[Any], None], failed: Failed) -> None:
        """Add a request."""
        self.items.append(item)
        self.callers.append((done, failed))

    def failed(self, error: StoreError) -> None:
        """Report an error to all callers."""
        for _, failed in self.callers:
            failed(error)


class Functions:
    """The functions for which a predicate is true; None is unknown."""

    def __init__(self, predicate: Callable[[bytes], bool | None]) -> None:
        self._predicate = predicate

    def __contains__(self, function: object) -> bool:
        return isinstance(function, bytes) and self._predicate(function) is True


def _is_unknown(answer: Reached | Moved | Forked) -> bool:
    return answer.verdict == "unknown"


class RunRequests:
    """Puts requests into the store. ``tasks`` are the functions that are tasks, ``paused`` those that are paused.

    A request that reaches no run is repeated once if ``user_starts`` has taken starts over since.
    """

    def __init__(
        self,
        commits: CommitQueue,
        clock: Clock,
        user_starts: UserStarts,
        *,
        tasks: Container[bytes],
        paused: Container[bytes],
    ) -> None:
        self._user_starts = user_starts
        self._commits = commits
        self._clock = clock
        self._tasks = tasks
        self._paused = paused
        self._signalling: tuple[SignalRuns, Gathered[Signal]] | None = None

    async def signal(self, signal: Signal) -> Reached:
        """Record a signal, or store it with a job whose run has not begun; those of one turn of the loop are one operation."""
        reached: Reached = await self._user_starts.repeated(signal.key, partial(self._signal, signal), _is_unknown)
        return reached

    async def _signal(self, signal: Signal) -> Reached:
        if self._signalling is None or not self._signalling[0].open:
            gathered: Gathered[Signal] = Gathered()
            operation = SignalRuns(gathered.items, 0, self._tasks, self._paused)
            self._signalling = operation, gathered

            def all_reached(outcome: Sequence[Reached]) -> None:
                for (function, _), one in zip(gathered.callers, outcome, strict=True):
                    function(one)

            self._commits.put(operation, all_reached, gathered.failed)
        operation, gathered = self._signalling
        operation.now_us = self._now_us()
        operation.rows += 1
        size = len(signal.input) + 200
        operation.size += size
        self._commits.add_bytes(size)
        reached: Reached = await Callback(partial(gathered.add, signal))
        return reached

    async def request_cancel(self, key: Key, reason: str, request: int, act: Act | None = None) -> Reached:
        """Ask a run to cancel itself."""

        def ask() -> Awaitable[Reached]:
            operation = RequestCancelRun(key, reason, self._now_us(), request, tasks=self._tasks)
            operation.act = act
            return self._commits.committed(operation)

        reached: Reached = await self._user_starts.repeated(key, ask, _is_unknown)
        return reached

    async def terminate(self, key: Key, reason: str, children: ChildPolicy | None, act: Act | None = None) -> Reached:
        """End a run at once; ``children`` replaces the policies of its children."""

        def ask() -> Awaitable[Reached]:
            operation = TerminateRun(key, reason, self._now_us(), children=children, tasks=self._tasks)
            operation.act = act
            return self._commits.committed(operation)

        reached: Reached = await self._user_starts.repeated(key, ask, _is_unknown)
        return reached

    async def move(self, key: Key, version: str, act: Act | None = None) -> Moved:
        """Give a run another version, if its code has recorded nothing."""

        def ask() -> Awaitable[Moved]:
            operation = MoveRun(key, version, self._now_us(), tasks=self._tasks)
            operation.act = act
            return self._commits.committed(operation)

        moved: Moved = await self._user_starts.repeated(key, ask, _is_unknown)
        return moved

    async def fork(self, key: Key, change: Change, act: Act | None = None, *, dry_run: bool = False) -> Forked:
        """Begin a fork of a run, or tell what it would have."""

        def ask() -> Awaitable[Forked]:
            operation = ForkRun(key, change, self._now_us(), dry_run, tasks=self._tasks)
            operation.act = act
            return self._commits.committed(operation)

        forked: Forked = await self._user_starts.repeated(key, ask, _is_unknown)
        return forked

    async def pause(self, key: Key, *, reason: str, by: str, until_us: int, act: Act | None = None) -> Reached:
        """Pause a run, or change its pause."""

        def ask() -> Awaitable[Reached]:
            operation = PauseRun(key, self._now_us(), reason, by, until_us, tasks=self._tasks)
            operation.act = act
            return self._commits.committed(operation)

        reached: Reached = await self._user_starts.repeated(key, ask, _is_unknown)
        return reached

    async def resume(self, key: Key, act: Act | None = None) -> Reached:
        """End the pause of a run."""

        def ask() -> Awaitable[Reached]:
            operation = ResumeRun(key, self._now_us(), tasks=self._tasks)
            operation.act = act
            return self._commits.committed(operation)

        reached: Reached = await self._user_starts.repeated(key, ask, _is_unknown)
        return reached

    @shielded
    async def unpark(self, key: Key | None, namespace: str, act: Act | None = None) -> int:
        """Let a parked run go on, or all of a namespace, and return their number."""
        definition = None if key is not None else (namespace,)
        operation = UnparkRuns(self._now_us(), key=key, definition=definition, limit=BATCH)
        operation.act = act  # of the first step: one act for all of them
        number = unparked = await self._commits.committed(operation)
        while key is None and unparked == BATCH:
            following = UnparkRuns(self._now_us(), definition=definition, limit=BATCH)
            unparked = await self._commits.committed(following)
            number += unparked
        return int(number)

    def _now_us(self) -> int:
        return to_us(self._clock.wall())


class RootRuns:
    """The runs of the root jobs of a node, for its jobs; see ``jobs.roots.Roots``.

    ``failed_builds`` returns the builds whose code could not make a decision of a run.
    """

    def __init__(self, commits: CommitQueue, clock: Clock, *, failed_builds: Callable[[int], Collection[str]]) -> None:
        self._commits = commits
        self._clock = clock
        self._failed_builds = failed_builds
        self.cached = CachedRuns()
        self.builds = Builds()

    def begin(self, jobs: list[Job], done: Callable[[Joined], None], failed: Failed) -> None:
        """See ``jobs.roots.Roots``."""

        def begun(outcome: Begun) -> None:
            for why in outcome.refused.values():
                failed(UsageError(why))
                return
            done(outcome.joined)

        self._commits.put(_beginning([Start(job) for job in jobs], self._now_us()), begun, failed)

    def beginning(self, jobs: list[Job], act: KeyedAct) -> tuple[Operation, Callable[[Begun], Stored]]:
        """See ``jobs.roots.Roots``."""
        return _beginning([Start(job) for job in jobs], self._now_us(), act), _stored

    def begin_waiting(self, function: bytes, limit: int, done: Callable[[int], None], failed: Failed) -> None:
        """See ``jobs.roots.Roots``."""
        self._commits.put(BeginWaiting(function, limit, self._now_us()), done, failed)

    def fill(
        self,
        function: bytes,
        limit: int,
        keys: Sequence[bytes] | None,
        after: bytes | None,
        done: Callable[[Filled], None],
        failed: Failed,
    ) -> None:
        """See ``jobs.roots.Roots``."""
        self._commits.put(FillPlaces(function, limit, self._now_us(), keys, after), done, failed)

    async def cancel(self, job_id: int, reason: str, act: Act | None = None) -> str:
        """See ``jobs.roots.Roots``."""
        operation = RequestCancelRun(Key(job=job_id, namespace=ANY), reason, self._now_us())
        operation.act = act
        reached: Reached = await self._commits.committed(operation)
        if reached.verdict == "unread":
            raise ConflictError(f"this node cannot read the run: {reached.fault}; {REMEDY}")
        if reached.verdict == "full":
            raise ConflictError(
                "the run's history is full, so that it takes no requests: end it with `mainspring workflows terminate`"
            )
        if reached.verdict in {"recorded", "repeated"}:
            return "running" if reached.run and reached.status.open else "cancelled"
        return "unknown" if reached.verdict == "unknown" else "ended"

    def goes_on(self, job: Job) -> Worker | None:
        """See ``jobs.roots.Roots``."""
        return self.cached.goes_on(job)

    def prefers(self, function: bytes) -> Callable[[Held], Worker | None] | None:
        """See ``jobs.dispatch.Dispatch``: decisions prefer the worker that has the run in memory.

        If builds have failed at the run, its decisions prefer workers with another build.
        """
        return self._worker_with if function[:1] == DECISIONS else None

    def _worker_with(self, held: Held) -> Worker | None:
        options = held.job.options
        if options is None or options.run is None:
            return None
        run = options.run[0]
        cached = self.cached.worker_of(run)
        failed = self._failed_builds(run)
        definition = decisions_of(held.job.function) if failed else None
        return cached if definition is None else self.builds.other_than(failed, definition, cached)

    def _now_us(self) -> int:
        return to_us(self._clock.wall())


DAY: Final = 86_400.0
RUN: Final = Kind("run", REMEDY)


class Counts(NamedTuple):
    """Runs by namespace and type, or by namespace, type and version."""

    open: Mapping[tuple[str, str], int]
    parked: Mapping[tuple[str, str, str], int]
    stranded: Mapping[tuple[str, str, str], int]


class WorkflowService:
    """The workflows slice of a node, on a store that keeps runs. The node calls ``tick`` at least every quarter of a second.

    ``roots`` begins the runs of ``jobs``. ``tail`` returns the newest events of a run, if they are in memory. ``first`` returns
    whether this node is the first in line for a name; None if no other node shares the store. ``workers_elsewhere`` returns how
    many workers of other nodes have a function. ``retention`` is the time in seconds for which closed runs are kept.
    ``step_secret`` returns `storage.engine.Engine.step_secret`. ``set_aside`` has the runs and errands that this node cannot
    read. ``events`` records that runs are stranded.
    """

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        jobs: JobService,
        roots: RootRuns,
        *,
        tail: Callable[[int, int], Tail | None],
        first: Callable[[str], bool] | None = None,
        workers_elsewhere: Callable[[bytes], int] = lambda _: 0,
        retention: float = 14 * DAY,
        limits: Limits | None = None,
        step_secret: Callable[[], bytes] = lambda: b"",
        fetching: FetchTimes = FETCH_TIMES,
        set_aside: SetAside | None = None,
        events: EventLog | None = None,
    ) -> None:
        self._set_aside = SetAside(clock) if set_aside is None else set_aside
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._jobs = jobs
        self.limits = limits or Limits()
        self._step_secret = step_secret
        self.tail = tail
        self.latest = LatestEvents(reads)
        self.user_starts = UserStarts(jobs, reads)
        self.cached = roots.cached
        self._builds = builds = roots.builds
        self.decisions = DecisionIntake(commits, clock, jobs, roots.cached)
        self.workers = DeciderWorkers()

        def served(function: bytes) -> bool:
            others = jobs.registered.of_others()
            return others is None or function in others

        self.definitions = Definitions(commits, reads, clock, self._became_workflows, served_elsewhere=served)
        self._tasks = Functions(jobs.registered.has)
        self._paused = Functions(lambda function: jobs.functions.limits_of(function).paused)
        self.requests = RunRequests(commits, clock, self.user_starts, tasks=self._tasks, paused=self._paused)
        self._long_histories = LongHistories(self.limits, jobs.handles.of)
        self._newly_parked = NewlyParked(jobs.handles.of, clock.monotonic)
        self._starting: tuple[BeginRuns, Gathered[Start]] | None = None
        is_shared = first is not None
        first = first or (lambda _: True)

        def paused() -> bool:
            return jobs.dispatch.paused

        def looks() -> bool:
            return is_shared and self.definitions.any() and first(ERRANDS)

        def aside() -> int:
            return self._set_aside.number(RUN)

        self._errands = ErrandLoop(
            commits,
            reads,
            clock,
            paused=paused,
            looks=looks,
            set_aside=self._set_aside,
        )
        self._hold_looks = HoldLooks(
            commits,
            reads,
            clock,
            paused=paused,
            looks=lambda: is_shared and self.definitions.any() and first(HOLDS),
        )
        self._sent = SignalLoop(
            commits,
            reads,
            clock,
            paused=paused,
            looks=looks,
            set_aside=self._set_aside,
            tasks=self._tasks,
            paused_functions=self._paused,
        )
        self._alarms = Alarms(
            commits,
            clock,
            jobs.timers,
            first=first,
            paused=paused,
            fetching=fetching,
            waits=self.is_set_aside,
            aside=aside,
        )
        self._watch = Watch(
            commits,
            reads,
            clock,
            builds=builds.all,
            definitions=self.definitions.all,
            keep=self.definitions.keep,
            served=served,
            first=first,
            paused=paused,
            retention=retention,
            is_shared=is_shared,
            aside=aside,
            events=events,
        )
        self.versions = VersionTable(commits, reads, clock, self.definitions, builds, workers_elsewhere)

    def _now_us(self) -> int:
        return to_us(self._clock.wall())

    @property
    def lateness(self) -> float:
        """The seconds by which the last alarm was late."""
        return self._alarms.lateness

    # ---- the node ----

    def load(self, then: Callable[[], None], failed: Callable[[StoreError], None]) -> None:
        """Read what the service needs before the node serves."""
        self.definitions.load(lambda: self._watch.load(then, failed), failed)

    def fetch(self) -> None:
        """Fetch the first alarms, and look for runs that wait for resources, once the node serves."""
        self._alarms.fetch()
        self._hold_looks.tick()

    def tick(self) -> None:
        """Do the work that is due."""
        if not self._jobs.dispatch.paused:
            self._alarms.tick()
            self._errands.tick()
            self._hold_looks.tick()
            self._sent.tick()
            self.definitions.tick(self._builds.all)
        self._watch.tick()

    def awaits_times(self) -> bool:
        """See `jobs.sharing.Sharing.add_reader`."""
        return self._alarms.is_empty

    def read_signs(self, signs: Signs) -> None:
        """See `jobs.sharing.Sharing.add_reader`."""
        if self.definitions.any():
            self._errands.read_sign(signs.errands)
            self._hold_looks.read_sign(signs.run_requests)
            self._sent.read_sign(signs.signals)
        if signs.alarm_us is not None:
            self._alarms.skip(signs.alarm_us)

    # ---- the store's notes after a commit ----

    def errands_stored(self) -> None:
        """See `workflows.observers.RunObserver`."""
        self._errands.stored()

    def holds_asked(self) -> None:
        """See `workflows.observers.RunObserver`."""
        self._hold_looks.asked()
        self._jobs.assigner.hold_requests.repeat()

    def appended(self, runs: Sequence[Changed]) -> None:
        """See `workflows.observers.RunObserver`: report progress, add alarms, count parked runs, and forget closed ones."""
        if not self._set_aside.is_empty:
            self._set_aside.handled(RUN, [self._jobs.handles.of(one.run).decode() for one in runs])
        alarms = []
        cached, limits = self.cached, self.limits
        for one in runs:
            if one.about:
                self._report_progress(one)
            if one.parked_us or one.was_parked:
                self._watch.changed(one)
            if one.status:
                cached.closed(one.run)
                continue
            cached.appended(one.run, one.events)
            if one.events >= limits.warn_events or one.history_bytes >= limits.warn_bytes:
                self._long_histories.check(one)
            if one.parked is not None:
                self._newly_parked.check(one)
            if one.due_us:
                alarms.append((one.run, one.due_us))
        if alarms:
            self._alarms.written(alarms)

    def _report_progress(self, run: Changed) -> None:
        """Pass the progress of a run on: at most once for each decision, because it comes with the decision's report."""
        progress = decode_about(run.about).progress
        if progress is not None:
            self._jobs.reports.report_root(run.root, b"%d" % progress.done, b"%d" % progress.total, progress.text)

    def not_read(self, runs: Sequence[Unread]) -> None:
        """See `workflows.observers.RunObserver`: name the runs in the log, on the overview and in the metrics."""
        for row, fault in runs:
            name = self._jobs.handles.of(row.id).decode()
            self._set_aside.note(RUN, name, fault)

    def history_not_read(self, run: int, fault: str) -> None:
        """Name a run whose events this node cannot read for its next decision."""
        self._set_aside.note(RUN, self._jobs.handles.of(run).decode(), fault)

    def step_key(self, run: int) -> bytes:
        """Return the key with which a worker records steps of a run in transactions of users; empty if the store takes none."""
        secret = self._step_secret()
        return step_key(secret, run) if secret else b""

    def is_set_aside(self, run: int) -> bool:
        """Return whether this node could not read a run, and does not try it again yet."""
        return not self._set_aside.is_empty and self._set_aside.waits(RUN, self._jobs.handles.of(run).decode())

    # ---- definitions and builds ----

    def connected(self, build: Build, worker: Worker) -> None:
        """Note a connected worker's code, and let parked runs try it."""
        if self._builds.connected(build, worker):
            self._watch.build_connected(build)

    def disconnected(self, build: Build, worker: Worker) -> None:
        """Forget it."""
        self._builds.disconnected(build, worker)

    def _became_workflows(self, functions: Iterable[bytes]) -> None:
        for function in functions:
            self._jobs.workers.became_root(function)

    # ---- starts ----

    async def start(self, start: Start) -> Begun:
        """Store a root job and begin its run; see `workflows.store.Start`. Those of one turn of the loop are one operation.

        If the workflow is paused, the job waits, and its run begins later.
        """
        if self._is_paused(start.job.function):
            return await self._start_later(start)
        if self._starting is None or not self._starting[0].open:
            gathered: Gathered[Start] = Gathered()
            operation = BeginRuns(gathered.items, 0)
            self._starting = operation, gathered

            def all_begun(outcome: Begun) -> None:
                for function, _ in gathered.callers:
                    function(outcome)

            self._commits.put(operation, all_begun, gathered.failed)
        operation, gathered = self._starting
        operation.now_us = self._now_us()
        operation.rows += 2
        size = len(start.job.payload) + 300
        operation.size += size
        self._commits.add_bytes(size)
        begun: Begun = await Callback(partial(gathered.add, start))
        return begun

    def _is_paused(self, function: bytes) -> bool:
        return function in self._paused and self.definitions.is_workflow(function)

    async def _start_later(self, start: Start) -> Begun:
        job = start.job
        if (why := self._set_options(start)) is not None:
            return Begun({}, {job.id: why})
        joined: Joined = await Callback(
            lambda done, failed: self._jobs.intake.submit([job], lambda _, joined: done(joined), failed)
        )
        return Begun(joined, {})

    def _set_options(self, start: Start) -> str | None:
        """Set the options of a job that waits; return the problem of the version, if there is one."""
        job, version, timeout = start
        if version and (why := self.definitions.version_problem(job.function, version)):
            return why
        if timeout or version:
            options = job.options or Options()
            job.options = msgspec.structs.replace(options, timeout=timeout or options.timeout, version=version)
        return None

    async def start_once(self, start: Start, keyed_act: KeyedAct) -> Stored:
        """Start a run as `start` does, in one transaction with the answer to the request. Raises RepeatedError."""
        job = start.job
        if self._is_paused(job.function):
            if (why := self._set_options(start)) is not None:
                return Stored({}, {job.id: why})
            return await self._jobs.keyed_intake.submit([job], keyed_act)
        act = KeyedAct(keyed_act.key, lambda outcomes: keyed_act.reply([_stored(outcomes[0])]))
        return _stored(await commit_keyed(self._commits, _beginning([start], self._now_us(), act)))

    # ---- queries ----

    async def list(self, query: ListRuns) -> Page[ShownRun]:
        """Return a page of runs."""
        return await self._reads.read_pages(query)

    async def list_part(self, query: ListRuns) -> Page[ShownRun]:
        """Return the runs that one read finds: the page may be short and have a next one."""
        return await self._reads.read(query)

    async def show(self, key: Key) -> Shown:
        """Return the run that a key names; without one, the jobs that it may name, whose runs have not begun."""
        shown: Shown = await self.user_starts.repeated(key, partial(self._show, key), lambda found: found == [])
        return shown

    async def _show(self, key: Key) -> Shown:
        found = await self._reads.read(ShowRun(key))
        if not isinstance(found, list):
            return found
        return [one for one in found if one.is_workflow or one.job.function not in self._tasks]

    async def history(self, run: int, first: int, limit: int, *, namespace: str) -> Page[Event]:
        """Return events of a run of a namespace from a number on: fewer than ``limit`` if they are large."""
        return await self._reads.read(ReadHistory(run=run, namespace=namespace, after=first - 1, limit=limit))

    def stranded(self) -> Collection[tuple[str, str, str]]:
        """Return namespaces, types and versions of runs that have waited for a minute for a worker with their code."""
        return {(one.namespace, one.type, one.version) for one in self._watch.stranded()}

    def counts(self) -> Counts:
        """Return the last counts."""
        stranded = {(one.namespace, one.type, one.version): one.runs for one in self._watch.stranded()}
        return Counts(self._watch.open, self._watch.parked, stranded)


def _beginning(starts: list[Start], now_us: int, act: KeyedAct | None = None) -> BeginRuns:
    operation = BeginRuns(starts, now_us, act)
    operation.size += sum(len(start.job.payload) + 300 for start in starts)
    return operation


def _stored(begun: Begun) -> Stored:
    return Stored(begun.joined, begun.refused)
