"""Versions of lists, objects and the first page: a page loads again when its stream sends another version than its own.

Each change of the first page makes all viewers load it again. So the version of `overview_version` changes with the facts that
matter, and not with counts that change all the time. Busy nodes change it about once a minute: numbers above a few count by their
size in powers of two, times by their minutes, and names only if they are few.
"""

from __future__ import annotations

import datetime as dt
import heapq
import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from mainspring.api.namespaces import NamespaceNode
from mainspring.api.nodes import NodeInfo
from mainspring.api.schedules import ScheduleDetails, ScheduleInfo
from mainspring.api.workflows import RunInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.api.jobs import JobInfo
    from mainspring.api.namespaces import NamespaceStatus

BEATS: Final = 4
"""Heartbeats of a node after which it has another version: a page shows what is left of its lease."""
SCHEDULE_FIRES: Final = 30
"""The newest fires that count for the version of a schedule."""
SCHEDULES_SHOWN: Final = 50
"""The schedules that are due next, which count for the version of the list with their last outcomes."""
WORKERS: Final = 100
"""The first workers, which count for the version of their list."""
EVENTS: Final = 50
"""The newest events that count for the version of their list."""
SUBSCRIPTIONS: Final = 100
"""The first listeners or webhooks, which count for the version of their list."""
DELIVERIES: Final = 20
"""The newest deliveries that count for the version of a listener or a webhook."""
RUNS: Final = 50
"""The newest runs that count for the version of their list, ..."""
PARKED: Final = 5
"""... and the newest parked ones."""
_DURATION: Final = re.compile(r"\b(?:\d+[dhms])+\b")
"""As `rough_duration` writes it: its units change, too, as it shrinks."""
_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def due_key(one: ScheduleInfo) -> str:
    """Return a text by which schedules are sorted: those that are due next come first."""
    return f"0 {one.next_at} {one.name}" if is_due(one) else f"1 {one.name}"


def is_due(one: ScheduleInfo) -> bool:
    """Return whether a schedule is to fire."""
    return one.next_at is not None and one.state != "paused"


def sees_all(nodes: Iterable[NodeInfo]) -> bool:
    """Return whether a caller sees all work of the nodes, and not that of some namespaces alone."""
    return all(node.prefetch is not None for node in nodes)


def version_of(*answers: Iterable[msgspec.Struct], number: int = 0) -> str:
    """Return the version of some answers of the API, each with items. It depends on nothing that changes with the time alone.

    ``number`` is that of all items, if only the first ones are in the answers.
    """
    digest = blake2b(b"%d" % number, digest_size=8)
    for answer in answers:
        for one in answer:
            digest.update(_encode(_lasting(one)))
        digest.update(b"\n")
    return digest.hexdigest()


def _lasting(one: msgspec.Struct) -> msgspec.Struct:
    """Return an item without the values that change all the time."""
    if isinstance(one, NodeInfo | NamespaceNode):
        return replace(one, beats=one.beats // BEATS, lease_left=None)
    if isinstance(one, RunInfo):  # it waits for a timer with a length that shrinks
        return replace(one, waits_for=_DURATION.sub("", one.waits_for or ""))
    if isinstance(one, ScheduleDetails):  # the revision covers it
        return replace(one, payload=b"")
    return one


NEXT_FIRES: Final = 5
NEWEST_FAILURES: Final = 5
LONG: Final = 300.0
"""Seconds after which a waiting job is old."""
NEW: Final = 300.0
"""Seconds for which a failed attempt is trouble; up to a minute longer, since it ends with a minute."""
MINUTE: Final = 60
_FEW: Final = 3
_EXACT: Final = 16
"""Numbers below this count exactly."""
_TO_THE_MINUTE: Final = len("2030-01-31T12:00")


def stuck_functions(status: NamespaceStatus) -> dict[str, int]:
    """Return the functions whose jobs wait without any worker, with the numbers of these jobs."""
    return {
        one.function: one.waiting
        for one in status.troubled
        if one.waiting and one.registered is False and not one.paused
    }


def waits_long(status: NamespaceStatus) -> bool:
    """Return whether a job has waited for long."""
    return status.oldest_waiting is not None and status.oldest_waiting.seconds > LONG


def just_failed(status: NamespaceStatus, now: float) -> list[str]:
    """Return the functions with new failed attempts, those with the most first: also of jobs that have attempts left."""
    failing = [] if status.failing is None else status.failing.functions
    since = now // MINUTE * MINUTE - NEW
    return [
        one.function for one in failing if one.last_at and dt.datetime.fromisoformat(one.last_at).timestamp() > since
    ]


def next_fires(schedules: Iterable[ScheduleInfo]) -> list[ScheduleInfo]:
    """Return the schedules that are due next."""
    return heapq.nsmallest(NEXT_FIRES, filter(is_due, schedules), key=due_key)


def overview_version(
    status: NamespaceStatus,
    nodes: Sequence[NamespaceNode],
    schedules: Iterable[ScheduleInfo] | None,
    failed: Sequence[JobInfo] | None,
    parked: Sequence[RunInfo] | None,
    now: float,
) -> str:
    """Return the version. ``failed`` and ``parked`` are the newest ones; None: unknown, or not kept in this store."""
    has_workers = any(node.workers for node in nodes)
    failing = [] if status.failing is None else status.failing.functions
    facts = [
        sorted((node.name, node.state, node.version) for node in nodes),
        has_workers,
        bool(status.jobs.waiting) and not has_workers,
        status.store is None or status.store.answers,
        waits_long(status),
        _few(stuck_functions(status)),
        _few(just_failed(status, now)),
        sorted(one.function for one in status.acknowledged),
        _few(f"{one.kind} {one.name} {one.paused} {bool(one.failures)}" for one in status.subscriptions),
        _minute(one.last_at for one in failing),
        _size(status.dead_letters or 0),
        None if failed is None else [_size(len(failed)), _minute(one.ended_at for one in failed)],
        None if parked is None else _few(one.run for one in parked),
        None if schedules is None else _fires(schedules, now),
        status.recent.since if status.recent is not None and _is_busy(status) else None,
    ]
    return blake2b(msgspec.json.encode(facts), digest_size=8).hexdigest()


def _fires(schedules: Iterable[ScheduleInfo], now: float) -> list[Any]:
    """Return the next fires without those of this minute, which change all the time; if there are any, also the minute."""
    minute = dt.datetime.fromtimestamp(now, dt.UTC).isoformat()[:_TO_THE_MINUTE]
    moving: list[ScheduleInfo] = []
    later: list[ScheduleInfo] = []
    for one in filter(is_due, schedules):
        is_moving = _minute([one.next_at]) <= minute or _minute([one.last_at]) >= minute
        (moving if is_moving else later).append(one)
    first = [(one.name, one.next_at, one.function) for one in next_fires(later)]
    return [first, _few(one.name for one in moving), minute if moving else ""]


def _is_busy(status: NamespaceStatus) -> bool:
    """Return whether anything on the page changes with the minutes: sums of the last minutes, or drawings of the last hour."""
    recent = {} if status.recent is None else msgspec.structs.asdict(status.recent)
    hours = (minutes for one in status.troubled for minutes in (one.submitted, one.not_succeeded))
    return any(recent[name] for name in recent if name not in {"since", "seconds"}) or any(
        any(minutes) for minutes in hours if minutes is not None
    )


def _few(names: Iterable[str]) -> list[str] | int:
    """Return the names if they are few, else the size of their number."""
    found = sorted(names)
    return found if len(found) <= _FEW else _size(len(found))


def _size(number: int) -> int:
    """Return a small number itself, and of others the power of two."""
    return number if number < _EXACT else _EXACT + number.bit_length()


def _minute(times: Iterable[str | None]) -> str:
    """Return the minute of the last one of some times of the API; empty: there is none."""
    return max((time or "" for time in times), default="")[:_TO_THE_MINUTE]
