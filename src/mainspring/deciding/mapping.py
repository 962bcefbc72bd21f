"""``workflow.map``: one function for many items, with results in order.

The history grows with the items: an activity takes three events, and six if a decision follows each end. A map whose activities
could take more events than the history has room for runs in child runs: see `map_parts`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from mainspring.client.submission import Submission
from mainspring.client.validation import check_whole
from mainspring.deciding.commands import build_activity
from mainspring.deciding.map_parts import PART_ITEMS, map_parts
from mainspring.deciding.window import Window
from mainspring.errors import MapFailed, UsageError, WorkflowUsageError
from mainspring.workflows.model import Limits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.client.inside import ActivityCall
    from mainspring.deciding.api import Calls
    from mainspring.workflows.history import WorkflowExecutionStarted

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


def history_room(started: WorkflowExecutionStarted) -> int:
    """Return the events that maps may use in a run's history; the run has recorded its node's limits at its start."""
    return int(ROOM * (started.warn_events or _LIMITS.warn_events))


def room_of(calls: Calls) -> int:
    """Return the events that another map may use."""
    return history_room(calls.started) - calls.state.seen - calls.mapped_events


def part_items(room: int) -> int:
    """Return the most items of a part, whose history has room for so many events: at most half of it is used."""
    return max(1, min(PART_ITEMS, room // (2 * EVENTS_PER_ITEM)))
