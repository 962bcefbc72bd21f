"""Parts of a map: child runs with up to 1,000 items each.

A history has no room for the activities of a large map. So the run starts children of its own workflow and version, which any of
its workers can decide. In place of the workflow's function, they run the activities of their part and return the outcomes. The
activities are built by the parent; the children know neither the task nor its types. The first event of a run tells whether it
is a part, by a tag from its parent. Its input alone does not: anybody may have written that. Nodes check that the decider of the
parent may run the function of the activities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.client.inside import ActivityCall, ChildCall
from mainspring.client.options import CancelMode, Options
from mainspring.client.submission import Verbatim
from mainspring.deciding.window import Window
from mainspring.errors import JobCancelled, JobFailed, JobTimedOut, PayloadError
from mainspring.workflows.decisions.model import ScheduleActivityTask  # noqa: TC001 - msgspec reads the annotations
from mainspring.workflows.model import PART, PART_TAG

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Sequence

    from mainspring.deciding.api import Calls
    from mainspring.workflows.history import WorkflowExecutionStarted

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


def is_part(started: WorkflowExecutionStarted) -> bool:
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
