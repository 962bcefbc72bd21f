"""Versions of lists and objects: a page has the version of what it shows, and loads again when its stream sends another one."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from mainspring.api.namespaces import NamespaceNode
from mainspring.api.nodes import NodeInfo
from mainspring.api.schedules import ScheduleDetails, ScheduleInfo
from mainspring.api.workflows import RunInfo

if TYPE_CHECKING:
    from collections.abc import Iterable

BEATS: Final = 4
"""Heartbeats of a node after which it has another version: a page shows what is left of its lease."""
SCHEDULE_FIRES: Final = 30
"""The newest fires that count for the version of a schedule."""
SCHEDULES_SHOWN: Final = 50
"""The schedules that are due next, which count for the version of the list with their last outcomes."""
WORKERS: Final = 100
"""The first workers, which count for the version of their list."""
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
