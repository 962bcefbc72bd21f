"""Signals that users send in transactions of their own, by a function of the store: a node passes them to the runs.

The store keeps them in the order of the sends. One node at a time passes them on. One that no run takes is refused: it stays in
the store with the reason, for the operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.clock import to_us
from mainspring.jobs.store import SIGNS_LAST
from mainspring.storage.reads import REMEDY, Kind
from mainspring.workflows.client_signals import signal_runs
from mainspring.workflows.model import key_of
from mainspring.workflows.requests import Signal, request_number
from mainspring.workflows.store import Delivered, DeliverSignals, FindSentSignals, SignalRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.reads import Reads, SetAside
    from mainspring.workflows.changes import RunChanges
    from mainspring.workflows.requests import Reached
    from mainspring.workflows.store import SentSignal, SentSignals

LOOK_INTERVAL: Final = 1.0
"""Seconds between two looks for sent signals, while no signs tell whether there are any (`jobs.store.Signs`)."""
REFUSED_INTERVAL: Final = 10.0
"""Seconds between two counts of refused signals: an idle fleet sends the database few statements."""
MOST: Final = 200
"""Signals that one transaction passes on."""
MOST_BYTES: Final = 16 * 2**20
"""Bytes of their values after which it takes no further one."""
REFUSED: Final = "refused_signals"
"""The table with refused signals."""
REFUSED_SIGNAL: Final = Kind(
    "signal",
    f"look at the table {REFUSED} of the store's schema, send them again if they are yours, and delete the rows",
    is_tried_again=False,
)
_UNREAD: Final = Kind("signal", REMEDY)


class SignalLoop:
    """Passes sent signals on, on a node that calls ``tick`` regularly.

    ``looks`` returns whether this node is the one that does it, ``paused`` whether nothing may be written. ``tasks`` and
    ``paused_functions`` are as of `SignalRuns`.
    """

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        *,
        paused: Callable[[], bool],
        looks: Callable[[], bool],
        set_aside: SetAside,
        tasks: Container[bytes],
        paused_functions: Container[bytes],
    ) -> None:
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._paused = paused
        self._looks = looks
        self._set_aside = set_aside
        self._tasks = tasks
        self._paused_functions = paused_functions
        self._look_at = clock.monotonic()
        self._count_at = self._look_at
        self._is_busy = False
        self._aside: set[int] = set()
        """The numbers of signals whose runs this node cannot read."""
        self._awaited: Mapping[int, int] = {}
        """As in ``Delivered``."""

    def tick(self) -> None:
        """Look, as due, and pass on what is there."""
        now = self._clock.monotonic()
        if self._is_busy or now < min(self._look_at, self._count_at) or self._paused() or not self._looks():
            return
        self._look(now)

    def read_sign(self, are_there: bool) -> None:
        """Process the sign whether there are sent signals."""
        now = self._clock.monotonic()
        if not are_there:
            self._look_at = max(self._look_at, now + SIGNS_LAST)
        elif not self._is_busy and not self._paused():
            self._look(now)

    def _look(self, now: float) -> None:
        self._look_at = max(self._look_at, now + LOOK_INTERVAL)
        self._is_busy = True
        self._aside = {one for one in self._aside if self._set_aside.waits(_UNREAD, str(one))}
        counts = now >= self._count_at
        self._reads.ask(FindSentSignals(tuple(sorted(self._aside)), counts), self._found, self._failed)

    def _found(self, found: SentSignals) -> None:
        if found.refused is not None:
            self._count_at = self._clock.monotonic() + REFUSED_INTERVAL
        if found.refused:
            fault = f"{found.refused} signals in SQL reached no run; the last one: {found.reason}"
            self._set_aside.note(REFUSED_SIGNAL, REFUSED, fault, found.refused, found.since_us / 1e6)
        elif found.refused is not None:
            self._set_aside.removed(REFUSED_SIGNAL, REFUSED)
        if not found.signals or self._paused():
            self._is_busy = False
            return
        now_us = to_us(self._clock.wall())
        operation = DeliverSignals(found.signals, now_us, self._awaited, self._tasks, self._paused_functions)
        self._commits.put(operation, lambda delivered: self._delivered(found.signals, delivered), self._failed)

    def _delivered(self, sent: Sequence[SentSignal], delivered: Delivered) -> None:
        self._is_busy = False
        for number, fault in delivered.unread.items():
            self._set_aside.note(_UNREAD, str(number), fault)
        self._aside |= delivered.unread.keys()
        self._awaited = delivered.awaited
        gone = [one.number for one in sent if not delivered.keeps(one.number)]
        self._set_aside.handled(_UNREAD, map(str, gone))
        if gone or delivered.unread:  # more may have come, and some may be refused
            self._look_at = self._count_at = now = self._clock.monotonic()
            if not self._paused() and (not delivered.elsewhere or self._looks()):
                self._look(now)

    def _failed(self, error: StoreError) -> None:
        del error  # the next look repeats it
        self._is_busy = False
        self._count_at = max(self._count_at, self._clock.monotonic() + LOOK_INTERVAL)


async def deliver(
    changes: RunChanges,
    sent: Sequence[SentSignal],
    joined: Mapping[int, int],
    submitted: tuple[int, int],
    operation: DeliverSignals,
) -> tuple[dict[int, str], Delivered]:
    """Signal runs; return why some signals reach none, by their numbers, and those that stay stored.

    ``joined`` has the root jobs that stand for others. ``submitted``: the oldest and the newest submission in users' own
    transactions that were no jobs yet before the group looked for any run, 0 for none. A signal to a workflow id that reaches no
    open run waits until those of its first attempt are jobs: one of them may be the start that was committed before it.
    """
    largest = changes.limits.largest
    fitting = [one for one in sent if len(one.input) <= largest]
    signals = [
        one._replace(key=one.key._replace(job=joined.get(one.key.job, one.key.job))) for one in map(signal_of, fitting)
    ]
    outcome = await signal_runs(changes, SignalRuns(signals, operation.now_us, operation.tasks, operation.paused))
    refused = {
        one.number: f"the value has {len(one.input)} bytes, and this store takes {largest}"
        for one in sent
        if len(one.input) > largest
    }
    unread: dict[int, str] = {}
    awaited: dict[int, int] = {}
    oldest, newest = submitted
    waiting: set[tuple[str, str]] = set()
    """The runs of signals that wait."""
    for one, reached in zip(fitting, outcome, strict=True):
        newest_then = operation.awaited.get(one.number, newest)
        if (one.namespace, one.run) in waiting:
            if reached.verdict == "recorded":
                raise BehindAwaitedError("a run has begun between two of its signals")
            awaited[one.number] = newest_then
        elif reached.verdict == "unread":
            unread[one.number] = reached.fault
        elif reached.verdict in {"unknown", "closed"} and is_workflow_id(one) and 0 < oldest <= newest_then:
            awaited[one.number] = newest_then
            waiting.add((one.namespace, one.run))
        elif reached.verdict not in {"recorded", "repeated"}:
            refused[one.number] = _reason(one, reached)
    return refused, Delivered(unread, awaited)


class BehindAwaitedError(Exception):
    """A group has recorded a signal behind one that waits: it must begin anew."""


def is_workflow_id(sent: SentSignal) -> bool:
    """Return whether a signal names its run by a workflow id."""
    return bool(key_of(sent.namespace, sent.run).workflow_id)


def signal_of(sent: SentSignal) -> Signal:
    """Return a sent signal as a request."""
    return Signal(
        key_of(sent.namespace, sent.run), sent.name, sent.input, request_number(sent.request) if sent.request else 0
    )


def _reason(sent: SentSignal, reached: Reached) -> str:
    run = f"the run {sent.run[:200]}"
    match reached.verdict:
        case "closed":
            return f"{run} is closed ({reached.status.name.lower().replace('_', ' ')})"
        case "full":
            return f"{run} takes no more signals" + ("" if reached.run else " before its begin")
        case "ambiguous":
            return f"several jobs whose runs have not begun may be {run}: send the signal to a handle"
        case _:
            return f"there is no run {sent.run[:200]} in the namespace {sent.namespace}"
