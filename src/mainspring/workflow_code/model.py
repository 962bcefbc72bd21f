"""The values between a run in a worker and the worker that drives it.

The node has the exact size of a history, but a replay could not repeat the size of an earlier moment. So the worker adds up the
values in the events itself, up to the last event that the code was given: that is the same in each replay.

A line that the code logs belongs to the report of the turn that has logged it. A node stores the lines of recorded reports
alone, and later executions only replay those turns: so no line is stored twice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from mainspring.client.options import check_short
from mainspring.workflows.history import KINDS, Event

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from mainspring.client.options import Retry
    from mainspring.client.payload import Signature
    from mainspring.workflows.model import Limits, Parked
    from mainspring.workflows.requests import Decision, StepResult

Record = Literal["each", "together"]
"""When the result of a local step is recorded: before the next effect starts, or with the decision."""

PARK_ON: Final[tuple[type[BaseException], ...]] = (
    NameError,
    AttributeError,
    ImportError,
    TypeError,
    AssertionError,
)
"""Errors that are most likely defects of the code: a run parks if one of them leaves its workflow."""


class Evicted(BaseException):
    """Thrown into the coroutines of a run that leaves the worker's memory. Code must let it pass."""


class ContinueAsNew(BaseException):
    """Raised out of a workflow, it ends the run and begins the next one of its chain; see ``workflow.continue_as_new``.

    It is no Exception: ``except Exception`` lets it pass.
    """

    def __init__(self, workflow: str, payload: bytes, same: Callable[[bytes], bool] | None = None) -> None:
        super().__init__(f"{workflow} continues as new: let this leave the workflow function")
        self.payload = payload
        """The encoded arguments of the next run."""
        self.same = same
        """In a replay: whether recorded arguments are these."""
        self.version = ""
        """Its version; empty: that of this run."""

    def options(self, *, version: str) -> Self:
        """Let the next run, and those after it, have another version of the workflow.

        ``raise workflow.continue_as_new(…).options(version="2")``: the run is parked if no worker has registered the version.
        """
        self.version = check_short(version, "version")
        return self


class EndOfHistory(Exception):  # noqa: N818 - a finding, not an error
    """Code that is only replayed asked for something that is not recorded yet. It never leaves this package."""


RUN_BYTES: Final = 3_000
"""Bytes of a run in memory, besides its values."""


@dataclass(frozen=True, slots=True)
class Code:
    """The code of one version of a workflow."""

    name: str
    version: str
    call: Callable[..., Any]
    signature: Signature
    park_on: tuple[type[BaseException], ...] = PARK_ON
    retry: Retry | None = None
    """When a run that has failed is begun again."""
    handlers: tuple[Any, ...] = ()
    """The marked methods, if it is a class: each a ``handlers.HandlerMethod``."""


class RunState:
    """How far the code of a run has got. The worker reads it; the instance alone changes it."""

    def __init__(self, code: Code, run: int, limits: Limits) -> None:
        self.code = code
        self.run = run
        self.limits = limits
        self.position = 0
        """The last event that the instance has."""
        self.seen = 0
        """The last event that the code was given: ``seen`` of the next completion."""
        self.now_us = 0
        """The time of the code: ``now_us`` of the next completion."""
        self.batch = 0
        """The last batch of step results in this decision: ``batch`` of the next completion."""
        self.semantics = 0
        """The behaviour with which this decision is made: ``semantics`` of the next completion. See
        ``workflows.model.SEMANTICS``."""
        self.size = RUN_BYTES
        """An estimate of the memory that the run takes, in bytes."""
        self.history = HistorySize()
        """The size of the events that the code was given."""
        self.evicted = False
        self.replaying = False
        """Whether the running activation repeats one that an earlier execution has made."""
        self.complete = False
        """Whether it belongs to a recorded decision, so that nothing new may be executed."""
        self.takes_holds = True
        """Whether the node of this decision grants slots of resources to runs."""
        self.query = ""
        """The query whose handler runs: it changes nothing. Empty: none runs."""
        self.only_replays = False
        """Whether nothing new may be executed in any decision."""
        self.lines = LogLines()
        """Lines of the code for the next report."""
        self.values: dict[str, bytes] = {}
        """Values that the code has published, for the next report."""
        self.streams: dict[str, list[bytes]] = {}
        """Items that the code has written to streams, for the next report."""


class Transaction(NamedTuple):
    """The transaction of a user in which a local step runs, and which records it."""

    open: Callable[[], Any]
    """Opens the connection: returns it, an awaitable of it, or its context manager."""
    schema: str
    """The schema of the store."""


class StepCall(NamedTuple):
    """A local step that the worker runs."""

    number: int
    name: str
    """The step's function, as the history names it."""
    call: Callable[..., Any]
    signature: Signature
    payload: bytes
    """The arguments, encoded by the signature. A step gets a copy of them, so that it cannot change the workflow's values."""
    record: Record
    executor: Literal["thread", "process", "coroutine"]
    at_once: bool = True
    """Whether it may start before the results and decisions of the same turn are recorded."""
    retry: Retry | None = None
    timeout: float | None = None
    attempt: int = 0
    """Attempts that were made before, by this worker or another one."""
    due_us: int = 0
    """The earliest time of the next attempt."""
    lasts: bool = False
    """Whether the function stays in memory anyway, as one of a module."""
    transaction: Transaction | None = None
    """If set, the function gets its connection as the first argument, which ``signature`` does not have."""
    middleware: tuple[Callable[..., Any], ...] = ()
    """That of the step's task alone."""


class StepOutcome(NamedTuple):
    """The end of a local step."""

    number: int
    result: bytes
    """The encoded result, or the error as JSON (``jobs.model.JobFailure``)."""
    failed: bool = False
    attempt: int = 1
    refusal: str = ""
    """If set, it has not ended: the run is parked for this reason."""


class Turn(NamedTuple):
    """The work of the worker after an activation."""

    decisions: tuple[Decision, ...] = ()
    """New commands in order. A close is the last one."""
    start: tuple[StepCall, ...] = ()
    """Local steps to start once everything before them is recorded."""
    steps: tuple[StepResult, ...] = ()
    """Results to record."""
    finished: bool = False
    """Whether ``decisions`` closes the run."""
    waits: bool = False
    """Whether local steps run or are to be started."""
    parked: Parked | None = None
    """If set, the worker sends nothing else of the turn and evicts the run."""
    stop: tuple[int, ...] = ()
    """Numbers of running local steps whose results nobody waits for any more."""


EVENT_BYTES: Final = 30
"""About the bytes of an event besides its value."""
_VALUES: Final[dict[type[Any], str]] = {
    kind: name for kind in KINDS.values() for name in ("details", "result", "input") if name in kind.__struct_fields__
}
"""The attribute with the value of an event."""


class HistorySize:
    """Adds up the events of a run."""

    __slots__ = ("_later", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        """The size up to the event of the last ``advance``."""
        self._later: deque[tuple[int, int]] = deque()
        """The numbers and sizes of the events after it."""

    def add(self, event: Event) -> None:
        """Add the next event."""
        name = _VALUES.get(event.__class__)
        size = EVENT_BYTES if name is None else EVENT_BYTES + len(getattr(event, name))
        self._later.append((event.id, size))

    def advance(self, seen: int) -> None:
        """Include the events up to one."""
        later = self._later
        while later and later[0][0] <= seen:
            self.bytes += later.popleft()[1]


MOST_BYTES: Final = 64 * 1024
"""Bytes of the lines in one report; of more, the oldest are left out."""

_encode = msgspec.msgpack.Encoder().encode


class LogLines:
    """The lines since the last report. Their numbers begin with 1 in each report."""

    __slots__ = ("_bytes", "_lines", "_next")

    def __init__(self) -> None:
        self._lines: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        self._next = 1

    def add(self, line: Any, size: int) -> None:
        """Add a line of about so many bytes, which MessagePack can encode."""
        self._next += 1
        self._lines.append((line, size))
        self._bytes += size
        while self._bytes > MOST_BYTES and len(self._lines) > 1:
            self._bytes -= self._lines.popleft()[1]

    def take(self) -> bytes:
        """Return the lines with the number of the first one, encoded for a report; empty if there are none."""
        if not self._lines:
            return b""
        body = _encode((self._next - len(self._lines), [line for line, _ in self._lines]))
        self._lines.clear()
        self._bytes, self._next = 0, 1
        return body
