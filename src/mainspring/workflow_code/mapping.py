"""``workflow.map``: one function for many items, with results in order, and a limit on the calls that are open at a time.

The history grows with the items: an activity takes three events, and six if a decision follows each end. A map whose activities
could take more events than the history has room for runs in child runs, its *parts*, with up to 1,000 items each.

They are children of the run's own workflow and version, which any of its workers can decide. In place of the workflow's
function, they run the activities of their part and return the outcomes. The activities are built by the parent; the children
know neither the task nor its types. The first event of a run tells whether it is a part, by a tag from its parent. Its input
alone does not: anybody may have written that. Nodes check that the decider of the parent may run the function of the
activities.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.client.inside import ActivityCall, ChildCall
from mainspring.client.options import CancelMode, Options, check_whole
from mainspring.client.submission import Submission, Verbatim
from mainspring.errors import (
    JobCancelled,
    JobFailed,
    JobTimedOut,
    MapFailed,
    PayloadError,
    UsageError,
    WorkflowUsageError,
)
from mainspring.workflow_code.endings import defect_of
from mainspring.workflow_code.loop import WorkflowFuture, WorkflowTask
from mainspring.workflow_code.workflow_jobs import build_activity
from mainspring.workflows.model import PART, PART_TAG, Limits
from mainspring.workflows.requests import ScheduleActivityTask  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mainspring.workflow_code.api import Calls
    from mainspring.workflows import history

EVENTS_PER_ITEM: Final = 6
"""The most events of an activity: three of its own, and those of a decision after its end."""
ROOM: Final = 2.45
"""Events that maps may use, for each event at which a history is called long: 24,500 of 25,000 with the default settings."""
_LIMITS: Final = Limits()


async def run_map(calls: Calls, target: Any, items: Iterable[Any], limit: int, *, return_exceptions: bool) -> list[Any]:
    """Call a task or a function of workflow code for each item, at most ``limit`` at a time. Return the results in order.

    All items are tried. Raises MapFailed if some fail, unless the errors are to be returned.
    """
    check_whole(limit, "limit", 1)
    arguments = [_arguments(item) for item in items]
    call = target.activity() if isinstance(target, Submission) else None
    if call is not None:
        outcomes = await _map_activities(calls, call, arguments, limit)
    else:
        function = target.submit if isinstance(target, Submission) else target
        if not callable(function):
            raise UsageError(f"map takes a task or a function, and not {target!r}")

        def start(index: int) -> asyncio.Future[Any]:
            args, kwargs = arguments[index]
            return asyncio.ensure_future(function(*args, **kwargs))

        outcomes = await Window(calls, start, len(arguments), limit)
    if not return_exceptions and any(isinstance(one, Exception) for one in outcomes):
        raise MapFailed.of(outcomes)
    return outcomes


def _arguments(item: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of an item, as ``submit_many`` reads it."""
    if isinstance(item, tuple):
        return item, {}
    return ((), item) if isinstance(item, dict) else ((item,), {})


async def _map_activities(
    calls: Calls, call: ActivityCall, arguments: list[tuple[tuple[Any, ...], dict[str, Any]]], limit: int
) -> list[Any]:
    open_limit = calls.state.limits.open_activities
    if limit > open_limit:
        raise WorkflowUsageError(f"limit is {limit:,}, and a run has at most {open_limit:,} open activities: lower it")
    largest = calls.state.limits.largest
    commands = [build_activity(index, call, *one, largest) for index, one in enumerate(arguments)]
    events = EVENTS_PER_ITEM * len(commands)
    if events > room_of(calls):
        return await map_parts(calls, call, commands, limit, most=part_items(history_room(calls.started)))
    calls.mapped_events += events
    try:

        def start(index: int) -> asyncio.Future[Any]:
            return calls.start_activity(call, commands[index], calls.same(call.codec, *arguments[index]))

        window = Window(calls, start, len(commands), limit)
        outcomes: list[Any] = await window
        return outcomes
    finally:
        calls.mapped_events -= events


def history_room(started: history.WorkflowExecutionStarted) -> int:
    """Return the events that maps may use in a run's history; the run has recorded its node's limits at its start."""
    return int(ROOM * (started.warn_events or _LIMITS.warn_events))


def room_of(calls: Calls) -> int:
    """Return the events that another map may use."""
    return history_room(calls.started) - calls.state.seen - calls.mapped_events


def part_items(room: int) -> int:
    """Return the most items of a part, whose history has room for so many events: at most half of it is used."""
    return max(1, min(PART_ITEMS, room // (2 * EVENTS_PER_ITEM)))


class Window(WorkflowFuture):
    """A future of the outcomes of calls, in order. An outcome is a result or an error.

    ``start`` begins a call by its index. At most ``limit`` are open; the end of one starts the next. A cancellation cancels the
    open calls and ends the window when they have ended. A call that cannot start does the same, and its error is the window's.
    An error of ``park_on`` parks the run if workflow code has raised it; the error of a job is an outcome.
    """

    __slots__ = ("_calls", "_error", "_limit", "_message", "_next", "_open", "_outcomes", "_start", "_stopped")

    def __init__(self, calls: Calls, start: Callable[[int], asyncio.Future[Any]], number: int, limit: int) -> None:
        super().__init__(calls.loop)
        self._calls = calls
        self._start = start
        self._limit = limit
        self._outcomes: list[Any] = [None] * number
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._next = 0
        self._stopped = False
        self._message: Any = None
        self._error: BaseException | None = None
        calls.loop.gatherings.add(self)
        self._fill()

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the open calls, and start no others."""
        if self.done():
            return False
        self._stopped = True
        self._message = msg
        for future in list(self._open.values()):
            future.cancel(msg)
        if not self._open:
            self._finish()
        return True

    def _fill(self) -> None:
        while self._next < len(self._outcomes) and len(self._open) < self._limit and not self._stopped:
            index = self._next
            self._next += 1
            try:
                future = self._start(index)
            except Exception as error:  # noqa: BLE001 - raised where the code waits for the window
                self._end_by(error.with_traceback(None))  # which refers to this frame
                return
            self._open[index] = future
            future.add_done_callback(partial(self._end, index))
        if not self._open and not self.done():
            self._finish()

    def _end(self, index: int, future: asyncio.Future[Any]) -> None:
        del self._open[index]
        if future.cancelled():
            self._outcomes[index] = JobCancelled(f"item {index}", f"item {index} was cancelled")
        else:
            error = future.exception()
            if error is not None and not isinstance(error, Exception) and self._calls.state.semantics >= 1:
                self._end_by(error)  # such as ContinueAsNew: it is no outcome
            elif error is not None and isinstance(future, WorkflowTask):
                self._calls.note_defect(defect_of(error, self._calls.state))
            self._outcomes[index] = future.result() if error is None else error
            del error
        if not self._stopped:
            self._fill()
        elif not self._open and not self.done():
            self._finish()

    def _end_by(self, error: BaseException) -> None:
        """Cancel the open calls, and end the window with an error when they have ended."""
        self._error = self._error or error
        self.cancel()

    def _finish(self) -> None:
        outcomes, self._outcomes = self._outcomes, []
        if self._error is not None:
            self.set_exception(self._error)
        elif self._stopped:
            super().cancel(self._message)
        else:
            self.set_result(outcomes)


PART_ITEMS: Final = 1_000
"""The most items of a part: a fourth of what a history has room for."""
PART_BYTES: Final = 256 * 1024
"""Bytes of arguments of a part, unless one item has more: all commands of a decision have to fit into one packet."""
PARTS_AT_ONCE: Final = 4
PART_LIMIT: Final = 25
"""Activities that a part may have open, at least, before there is another one beside it."""


class _Part(msgspec.Struct, array_like=True):
    activity: ScheduleActivityTask
    """The common attributes of the items' commands."""
    cancel: CancelMode
    limit: int
    items: list[tuple[bytes, bytes]]
    """The arguments and keys."""


class _End(msgspec.Struct, array_like=True, omit_defaults=True):
    """The outcome of an item."""

    result: bytes = b""
    error: str = ""
    """``failed``, ``timed_out`` or ``cancelled``; empty: it has a result."""
    type: str = ""
    message: str = ""
    traceback: str | None = None
    attempt: int = 0
    clock: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode_part = msgspec.msgpack.Decoder(_Part).decode
_decode_ends = msgspec.msgpack.Decoder(list[_End]).decode


# ---- in the run that maps ----


async def map_parts(
    calls: Calls, call: ActivityCall, commands: Sequence[ScheduleActivityTask], limit: int, most: int
) -> list[Any]:
    """Run activities in child runs of at most ``most`` items. Return their outcomes in order."""
    at_once = max(1, min(PARTS_AT_ONCE, limit // PART_LIMIT))
    mode: CancelMode = call.options.cancel or "try"
    parts = list(_divide(commands, most))
    code = calls.state.code
    child = ChildCall(
        code.name,
        Verbatim(code.name),
        Options(cancel=mode, child_policy="abandon" if mode == "abandon" else None, version=code.version),
        "",
        call.connections,
        _decode_ends,
        is_part=True,
    )

    def start(index: int) -> asyncio.Future[Any]:
        part = parts[index]
        common = msgspec.structs.replace(part[0], input=b"", key=b"")
        items = [(one.input, one.key) for one in part]
        return calls.start_child(child, (PART + _encode(_Part(common, mode, limit // at_once, items)),), {})

    outcomes: list[Any] = []
    ends: list[Any] = await Window(calls, start, len(parts), at_once)
    for part, ended in zip(parts, ends, strict=True):
        if isinstance(ended, Exception):
            outcomes += [ended] * len(part)
        else:
            outcomes += [outcome_of(call, len(outcomes) + place, end) for place, end in enumerate(ended)]
    return outcomes


def _divide(commands: Sequence[ScheduleActivityTask], most: int) -> Iterator[list[ScheduleActivityTask]]:
    part: list[ScheduleActivityTask] = []
    size = 0
    for command in commands:
        size += len(command.input)
        if part and (len(part) == most or size > PART_BYTES):
            yield part
            part, size = [], len(command.input)
        part.append(command)
    yield part


def outcome_of(call: ActivityCall, index: int, end: _End) -> Any:
    """Return the result of an item, or its error."""
    handle = f"{call.name}[{index}]"
    match end.error:
        case "":
            try:
                return call.decode(end.result)
            except Exception as error:  # noqa: BLE001 - one of the failures of the map
                if isinstance(error, PayloadError):
                    error.received = True
                return error.with_traceback(None)
        case "timed_out":
            return JobTimedOut(handle, end.type, end.message, end.traceback, end.attempt, end.clock)
        case "failed":
            return JobFailed(handle, end.type, end.message, end.traceback, end.attempt)
        case _:
            return JobCancelled(handle, end.message)


# ---- in a child run ----


def is_part(started: history.WorkflowExecutionStarted) -> bool:
    """Return whether a run is a part of a map."""
    if started.tags:
        return PART_TAG in started.tags and not started.full and started.input.startswith(PART)
    # A worker of an earlier version gives its children no tags. Its maps have to go on.
    is_child = started.parent_run != 0 and (not started.continued_run or started.attempt > 1)
    return is_child and started.input.startswith(PART)


async def run_part(calls: Calls, data: bytes) -> bytes:
    """Run the activities of a part. Return their outcomes, encoded."""
    part = _decode_part(data[len(PART) :])
    activity, items = part.activity, part.items
    call = ActivityCall(
        activity.function.decode(), None, Options(cancel=part.cancel), False, "", False, None, lambda result: result
    )

    def start(index: int) -> asyncio.Future[Any]:
        payload, key = items[index]
        return calls.start_activity(call, msgspec.structs.replace(activity, input=payload, key=key))

    return _encode([item_end(outcome) for outcome in await Window(calls, start, len(items), part.limit)])


def item_end(outcome: Any) -> _End:
    """Return the outcome of an item, to be sent to the run that maps."""
    if isinstance(outcome, bytes):
        return _End(outcome)
    if isinstance(outcome, JobFailed):
        kind, clock = ("timed_out", outcome.kind) if isinstance(outcome, JobTimedOut) else ("failed", "")
        return _End(b"", kind, outcome.type_name, outcome.reason, outcome.traceback, outcome.attempt, clock)
    return _End(b"", "cancelled", message=str(outcome))
