"""A run in a worker: its code in memory, its lease, and what is not recorded yet. `RunCache` has the runs in memory.

The worker requests the history of a run that it does not have in memory, page by page. `next_act` is the worker's next act for
a run: a pure function of the work that the run's code has brought and of the open reports. Times are those of the nodes: the
worker's own wall clock has no part in them.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from mainspring.clock import to_us
from mainspring.wire.gearman_protocol import Type
from mainspring.workflow_code.instance import Instance
from mainspring.workflows import history
from mainspring.workflows.decider_workers import CacheReport

if TYPE_CHECKING:
    from asyncio import TimerHandle
    from collections.abc import Callable, Collection, Iterator, Sequence

    from mainspring.worker.delivery import Delivery
    from mainspring.worker.execution import Settlement
    from mainspring.worker.link import Link
    from mainspring.worker.session import Assigned, Key
    from mainspring.worker.workflows.recorded_steps import RecordedStep
    from mainspring.workflow_code.model import StepCall, StepOutcome
    from mainspring.workflows.history import Event
    from mainspring.workflows.messages import SettlementMessage
    from mainspring.workflows.requests import Decision, StepResult


_log = structlog.get_logger("mainspring.workflows")

CACHE_RUNS: Final = 10_000
"""Runs in the cache."""
LONG_ACTIVATION: Final = 0.02
"""Seconds. A run whose activations take longer settles its activities first: they must not time out meanwhile."""

REST_AFTER_US: Final = 10_000_000
"""Microseconds of a step's wait for its next attempt from which on its decision is given back for that time."""
REST_EVENTS: Final = 5_000
"""Events of a history above which its decision is kept during such waits."""

_CHILD_ENDS: Final = (history.StartChildWorkflowExecutionFailed, history.ChildEnd)
_NOTED: Final = (
    history.ActivityTaskScheduled,
    history.ActivityEnd,
    history.StartChildWorkflowExecutionInitiated,
    *_CHILD_ENDS,
)
_NOTED_KINDS: Final = frozenset(kind for family in _NOTED for kind in history.kinds(family))


class EndedActivity(NamedTuple):
    """An activity of a run that this worker has executed, and whose end is not reported yet."""

    key: Key
    ref: int
    """The event that scheduled it."""
    attempt: int
    settlement: Settlement


class Cancellable(Protocol):
    """A call that is planned."""

    def cancel(self) -> object:
        """Make no call."""


class RunningStep:
    """A step between its start and its outcome; it may take several attempts."""

    __slots__ = ("attempt", "begins", "call", "delivery", "due_us", "over", "recorded", "run", "timer", "transaction")

    def __init__(self, run: Run, call: StepCall) -> None:
        self.run = run
        self.call = call
        self.attempt = call.attempt
        self.due_us = 0
        """The time of its next attempt while it waits for that, monotonic; 0: an attempt runs, or it has ended."""
        self.recorded = bool(call.due_us)
        """Whether the history has this time."""
        self.delivery: Delivery | None = None
        """Its present attempt."""
        self.timer: Cancellable | None = None
        """Of its timeout, or of the next attempt."""
        self.begins = False
        """Whether the next attempt begins in the next turn of the loop."""
        self.over = False
        self.transaction: RecordedStep | None = None
        """Its attempts, if it runs in transactions of a user."""


class Run:
    """A run that this worker decides. `decider` drives it.

    At most one report about it is under way. While it is, everything that happens to the run waits.
    """

    __slots__ = (
        "activation",
        "activities",
        "assigned",
        "batch",
        "check",
        "close_by",
        "decisions",
        "eager",
        "ended",
        "expected",
        "finished",
        "id",
        "instance",
        "key",
        "link",
        "now_us",
        "open",
        "outcomes",
        "outdated",
        "predicted",
        "reading",
        "reporting",
        "running",
        "seen",
        "semantics",
        "settlements",
        "size",
        "starts",
        "step_bytes",
        "step_key",
        "steps",
        "takes_retries",
        "timer",
        "unanswered",
        "waits",
    )

    def __init__(self, run: int, link: Link, instance: Instance) -> None:
        self.id = run
        self.link = link
        self.instance = instance
        self.size = 0
        """Bytes of its instance when it was last counted."""
        self.open: set[int] = set()
        """The open activities and children, by the events that scheduled or initiated them."""
        self.close_by: dict[int, int] = {}
        """The times by which open activities must end, if they are limited, in microseconds since 1970."""
        self.activities: set[int] = set()
        """The activities of the run that this worker holds, by the events that scheduled them."""
        self.key: Key | None = None
        """The delivery of its decision: the lease under which steps run."""
        self.seen = 0
        """The last event that the decision under way was given."""
        self.now_us = 0
        self.semantics = 0
        """The behaviour with which the code makes the decision under way."""
        self.batch = 0
        """The last batch of results of the decision under way."""
        self.activation = 0.0
        """Seconds that the last activation took."""
        self.expected = False
        """Whether its next decision is on its way to this worker, according to the node's last answer."""
        self.reading = False
        """Whether its decision waits for events, or for their replay in another process."""
        self.step_key = b""
        """The key with which steps are recorded in transactions of users; empty if its store does not record them."""
        self.takes_retries = False
        """Whether the node records steps that wait for their next attempts."""
        self.check = False
        """Whether its next decision is checked by a replay."""
        # Not reported yet:
        self.decisions: list[Decision] = []
        self.steps: list[StepResult] = []
        self.step_bytes = 0
        """The size of their results."""
        self.settlements: list[SettlementMessage] = []
        self.predicted: Sequence[Event] = ()
        """The events that the ends in ``settlements`` will cause; the code was given them already."""
        self.starts: list[StepCall] = []
        """Steps to start once all of this is recorded."""
        self.finished = False
        self.waits = False
        """Whether the code waits for steps."""
        self.eager = False
        """Whether the results have to be recorded now, and not with the decision."""
        self.outdated = False
        """Whether the run has newer events, which the answer to a report brings."""
        # Waits for the answer to a report:
        self.reporting = False
        self.assigned: Assigned | None = None
        """The next decision."""
        self.outcomes: list[StepOutcome] = []
        """Steps that have ended."""
        self.ended: list[EndedActivity] = []
        """Activities that have ended."""
        self.unanswered: TimerHandle | None = None
        """Settles these alone, if the answer takes long."""
        self.running: dict[int, RunningStep] = {}
        """The running steps, by their numbers."""
        self.timer: TimerHandle | None = None
        """Reports results that were to go with the decision, if it takes long."""

    @property
    def idle(self) -> bool:
        """Whether it is only in the cache."""
        return not (self.key or self.reporting or self.settlements or self.ended or self.assigned)

    @property
    def has_steps(self) -> bool:
        """Whether steps run, or have ended without being reported."""
        return bool(self.running or self.outcomes)

    def may_rest(self, monotonic_us: Callable[[], int], *, draining: bool) -> bool:
        """Return whether its decision may be given back, because all of its steps wait for their next attempts.

        Those waits take events of the history. Short ones are not worth them, and a long history has no room for them.
        """
        if not self.running or self.key is None or self.starts or self.outcomes or not self.takes_retries:
            return False
        if not all(step.due_us for step in self.running.values()):
            return False
        if draining:
            return True
        wait_us = min(step.due_us for step in self.running.values()) - monotonic_us()
        return wait_us >= REST_AFTER_US and self.instance.position < REST_EVENTS

    @property
    def keeps_step(self) -> bool:
        """Whether its decision only keeps other workers from executing its steps, which run or wait."""
        return bool(self.running) and not (self.reporting or self.reading or self.outcomes or self.starts)

    @property
    def executes(self) -> bool:
        """Whether an attempt of a step is under way."""
        return any(not step.due_us for step in self.running.values())

    @property
    def quiet(self) -> bool:
        """Whether nothing of it is under way, so that its code may begin again."""
        return self.idle and not (self.running or self.outcomes or self.starts or self.unrecorded)

    def take_outcomes(self, most: int, size: int) -> list[StepOutcome]:
        """Remove and return the first outcomes of steps: one, and further ones up to ``most`` with ``size`` bytes in all."""
        number = 0
        for outcome in self.outcomes[:most]:
            size -= len(outcome.result)
            if size < 0 and number:
                break
            number += 1
        taken, self.outcomes = self.outcomes[:number], self.outcomes[number:]
        return taken

    def restart(self) -> None:
        """Evict the code, to begin again with the first event."""
        old = self.instance
        old.evict()
        self.instance = Instance(old.code, self.id, limits=old.limits)

    @property
    def unrecorded(self) -> bool:
        """Whether a report has to be sent before a step may start."""
        return bool(self.decisions or self.steps or self.settlements)

    def take_lines(self) -> bytes:
        """Return the lines that the code has logged since the last report, if the server keeps them."""
        lines = self.instance.lines.take()
        return lines if self.link.session.takes_logs else b""

    def take_values(self) -> tuple[tuple[str, bytes], ...]:
        """Return the values that the code has published since the last report, if the server keeps them."""
        values = self.instance.values
        if not values:
            return ()
        taken = tuple(values.items())
        values.clear()
        if self.link.session.takes_values:
            return taken
        _log.warning(
            "published values were dropped: the server keeps none", run=self.id, names=[name for name, _ in taken]
        )
        return ()

    def take_streams(self) -> tuple[tuple[str, tuple[bytes, ...]], ...]:
        """Return the items that the code has written since the last report, if the server keeps them."""
        streams = self.instance.streams
        if not streams:
            return ()
        taken = tuple((name, tuple(items)) for name, items in streams.items())
        streams.clear()
        if self.link.session.takes_streams:
            return taken
        _log.warning(
            "items of streams were dropped: the server keeps none", run=self.id, names=[name for name, _ in taken]
        )
        return ()

    def take_ended(self) -> list[EndedActivity]:
        """Return the ended activities, which wait no longer."""
        if self.unanswered is not None:
            self.unanswered.cancel()
            self.unanswered = None
        ended, self.ended = self.ended, []
        return ended

    def drop_unrecorded(self) -> None:
        """Forget what is reported now."""
        self.decisions, self.steps, self.settlements = [], [], []
        self.step_bytes = 0
        self.eager = self.outdated = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def note(self, events: Sequence[Event]) -> None:
        """Note which activities and children events open and close."""
        for event in events:
            if event.__class__ not in _NOTED_KINDS:
                continue
            if isinstance(event, history.ActivityTaskScheduled):
                self.open.add(event.id)
                if event.schedule_to_close:
                    self.close_by[event.id] = (event.timed_from_us or event.at_us) + to_us(event.schedule_to_close)
            elif isinstance(event, history.ActivityEnd):
                self.open.discard(event.scheduled)
                self.close_by.pop(event.scheduled, None)
            elif isinstance(event, history.StartChildWorkflowExecutionInitiated):
                self.open.add(event.id)
            elif isinstance(event, _CHILD_ENDS):
                self.open.discard(event.initiated)

    def may_fuse(self, ended: Sequence[EndedActivity]) -> bool:
        """Return whether the ends of activities may be reported with a decision: no other activity or child is open elsewhere."""
        return (
            self.activation < LONG_ACTIVATION
            and self.open <= self.activities
            and all(one.ref in self.open for one in ended)
        )


class RunCache:
    """Runs by connection and number, up to ``most_bytes`` and ``CACHE_RUNS``. A run that is in use stays, whatever its size.

    The numbers of runs are unique in one store, and the nodes of a worker may have several.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._runs: dict[tuple[Link, int], Run] = {}
        """The one that was used last is the last one."""
        self._links: dict[Link, None] = {}
        self._size = 0
        self._deliveries: dict[tuple[Link, Key], Run] = {}
        """The runs with a decision."""
        self._dropped: dict[Link, list[int]] = {}
        self._decisions = self._hits = self._replays = self._evictions = 0

    def numbers(self) -> CacheReport:
        """Return what is in the cache, and what has happened in it."""
        counted = self._decisions, self._hits, self._replays, self._evictions
        return CacheReport(len(self._runs), self._size, self._most_bytes, *counted)

    def count_decision(self, *, was_here: bool, replayed: bool) -> None:
        """Count a decision of a run that was in memory, or whose history was replayed for it; neither: its first one."""
        self._decisions += 1
        self._hits += was_here
        self._replays += replayed

    def get(self, link: Link, number: int) -> Run | None:
        """Return a run of a connection; None if it is not in memory."""
        return self._runs.get((link, number))

    def copies(self, run: Run) -> list[Run]:
        """Return the same run as other nodes of its store have given it before.

        A run of another store may have the same number, but not the same first event.
        """
        if len(self._links) == 1 or run.instance.started is None:
            return []
        others = [self._runs.get((link, run.id)) for link in self._links if link is not run.link]
        return [one for one in others if one is not None and one.instance.started == run.instance.started]

    def __contains__(self, run: Run) -> bool:
        return self._runs.get((run.link, run.id)) is run

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs.values()))

    def add(self, run: Run) -> None:
        """Take a run into memory."""
        self._runs[run.link, run.id] = run
        self._links[run.link] = None

    def use(self, run: Run) -> None:
        """Note that the code of a run has run: its size may have changed, and it is evicted after the others."""
        size = run.instance.size
        self._size += size - run.size
        run.size = size
        key = run.link, run.id
        self._runs[key] = self._runs.pop(key)

    def drop(self, run: Run) -> None:
        """Take a run out of memory; do nothing if it is not there."""
        self.release(run)
        if run in self:
            del self._runs[run.link, run.id]
            self._size -= run.size
            self._dropped.setdefault(run.link, []).append(run.id)

    def excess(self) -> Iterator[Run]:
        """Return idle runs, the least recently used first, until the cache is small enough. The caller drops each at once."""
        if self._large:
            for run in self:
                if not self._large:
                    break
                if run.idle:
                    self._evictions += 1
                    yield run

    @property
    def _large(self) -> bool:
        return self._size > self._most_bytes or len(self._runs) > CACHE_RUNS

    def take_dropped(self) -> dict[Link, list[int]]:
        """Return the numbers of the runs that were dropped since the last call."""
        dropped, self._dropped = self._dropped, {}
        return dropped

    # ---- deliveries ----

    def deciding(self) -> Collection[Run]:
        """Return the runs with a decision."""
        return self._deliveries.values()

    def hold(self, run: Run, key: Key) -> None:
        """Note the delivery of a run's decision."""
        self.release(run)
        run.key = key
        run.expected = False
        self._deliveries[run.link, key] = run

    def release(self, run: Run) -> Key | None:
        """Return the delivery of a run's decision, which the run no longer has."""
        key, run.key = run.key, None
        if key is not None:
            del self._deliveries[run.link, key]
        return key

    def decided(self, link: Link, key: Key) -> Run | None:
        """Return the run of a decision's delivery."""
        return self._deliveries.get((link, key))


class _Request(NamedTuple):
    last: int
    now_us: int
    events: list[Event]


class Histories:
    """The requests for histories under way. ``read`` is called with a run, its missing events, and the time of its decision."""

    def __init__(self, read: Callable[[Run, Sequence[Event], int], None]) -> None:
        self._read = read
        self._requests: dict[Run, _Request] = {}

    def ask(self, run: Run, first: int, last: int, now_us: int) -> None:
        """Request the events of a run from ``first`` on, at least up to ``last``."""
        self._requests[run] = _Request(last, now_us, [])
        run.reading = True
        self._send(run, first)

    @staticmethod
    def _send(run: Run, first: int) -> None:
        run.link.session.send(Type.HISTORY, b"%d" % run.id, b"%d" % first)
        run.link.flush()

    def received(self, run: Run, events: Sequence[Event]) -> None:
        """Take a page."""
        request = self._requests.get(run)
        if request is None:
            return
        last_read = request.events[-1].id if request.events else run.instance.position
        if events and events[0].id != last_read + 1:
            return  # the answer to an earlier request
        request.events.extend(events)
        if events and events[-1].id < request.last:
            self._send(run, events[-1].id + 1)
        else:
            self.drop(run)
            self._read(run, request.events, request.now_us)

    def drop(self, run: Run) -> None:
        """Forget the request for a run."""
        if self._requests.pop(run, None) is not None:
            run.reading = False


TOGETHER_BYTES: Final = 64 * 1024
"""Bytes of results that are recorded with their decision above which they wait for it no longer."""
TOGETHER_STEPS: Final = 1_000
"""The number of such results above which they wait no longer."""


class Next(Enum):
    """The next act for a run."""

    NOTHING = auto()
    """An answer, an activity, a step or a decision comes first."""
    COMPLETE = auto()
    """Report the decision as complete."""
    RECORD = auto()
    """Report what there is, and go on with the decision."""
    START = auto()
    """Start steps: everything before them is recorded."""
    WAIT = auto()
    """Keep the results a short time, because the decision may soon be complete."""
    REST = auto()
    """Report the decision as complete, with the times of the next attempts of its steps."""
    HAND_BACK = auto()
    """Give the decision back: the worker ends, and nothing of the decision is to be recorded."""


def next_act(run: Run, monotonic_us: Callable[[], int], *, draining: bool) -> Next:
    """Return the next act for a run."""
    if run.reporting or not (run.key or run.settlements):
        return Next.NOTHING
    if run.reading:
        return Next.HAND_BACK if draining else Next.NOTHING
    if run.finished or not run.waits:
        return Next.COMPLETE
    if run.may_rest(monotonic_us, draining=draining):
        return Next.REST
    if run.starts and not draining:
        return Next.RECORD if run.unrecorded else Next.START
    if run.decisions or run.settlements or run.outdated:
        return Next.RECORD
    if run.steps:
        many = run.step_bytes > TOGETHER_BYTES or len(run.steps) > TOGETHER_STEPS
        now = run.eager or draining or many
        return Next.RECORD if now else Next.NOTHING if run.outcomes else Next.WAIT
    return Next.HAND_BACK if draining and not run.executes else Next.NOTHING


class NodeClocks:
    """Estimates the time of each node: that of its last decision, and the ``monotonic`` seconds since."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._ahead_us: dict[Link, int] = {}

    def set(self, link: Link, now_us: int) -> None:
        """Set the time of a node, in microseconds since 1970, by a decision that has just come."""
        self._ahead_us[link] = now_us - to_us(self._monotonic())

    def monotonic_us(self) -> int:
        """Return monotonic microseconds: no node's time has a part in them."""
        return to_us(self._monotonic())

    def now_us(self, link: Link) -> int:
        """Return the time of a node in microseconds since 1970; an early one if it has assigned no decision yet."""
        return to_us(self._monotonic()) + self._ahead_us.get(link, 0)
