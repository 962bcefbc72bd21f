"""Signals that users send in transactions of their own, by a function of the store: a node passes them to the runs.

The store keeps them in the order of the sends. One node at a time passes them on. One that no run takes is refused: it stays in
the store with the reason, for the operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.clock import to_us
from mainspring.storage.reads import REMEDY, Kind
from mainspring.workflows.client_signals import signal_runs
from mainspring.workflows.model import key_of
from mainspring.workflows.requests import Signal, request_number
from mainspring.workflows.store import DeliverSignals, FindSentSignals, SignalRuns

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
"""Seconds between two looks for sent signals."""
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

    def tick(self) -> None:
        """Look, as due, and pass on what is there."""
        now = self._clock.monotonic()
        if self._is_busy or now < self._look_at:
            return
        self._look_at = now + LOOK_INTERVAL
        if not self._paused() and self._looks():
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
        operation = DeliverSignals(found.signals, now_us, self._tasks, self._paused_functions)
        self._commits.put(operation, lambda unread: self._delivered(found.signals, unread), self._failed)

    def _delivered(self, sent: Sequence[SentSignal], unread: Mapping[int, str]) -> None:
        self._is_busy = False
        for number, fault in unread.items():
            self._set_aside.note(_UNREAD, str(number), fault)
        self._aside |= unread.keys()
        self._set_aside.handled(_UNREAD, (str(one.number) for one in sent if one.number not in unread))
        self._look_at = self._count_at = self._clock.monotonic()  # more may have come, and some may be refused
        self.tick()

    def _failed(self, error: StoreError) -> None:
        del error  # the next look repeats it
        self._is_busy = False


async def deliver(
    changes: RunChanges, sent: Sequence[SentSignal], joined: Mapping[int, int], operation: DeliverSignals
) -> tuple[dict[int, str], dict[int, str]]:
    """Signal runs; return why some signals reach none, and the faults of those whose runs cannot be read, by their numbers.

    ``joined`` has the root jobs that stand for others.
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
    for one, reached in zip(fitting, outcome, strict=True):
        if reached.verdict == "unread":
            unread[one.number] = reached.fault
        elif reached.verdict not in {"recorded", "repeated"}:
            refused[one.number] = _reason(one, reached)
    return refused, unread


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
