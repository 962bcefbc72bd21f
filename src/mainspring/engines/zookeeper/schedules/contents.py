"""The records in the schedules' nodes, as JSON. Bytes that are text become a string; see ``records``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from mainspring.engines.zookeeper import records
from mainspring.schedules.codecs import UNREADABLE, readable_part
from mainspring.schedules.model import Fire, FireState, Schedule, ScheduleState
from mainspring.schedules.parents import Join
from mainspring.schedules.reconcile import Deployment
from mainspring.schedules.store import Declared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.schedules.store import Key

T = TypeVar("T", Schedule, ScheduleState, Fire, Join)
_BYTES: Final[dict[type, tuple[str, ...]]] = {
    Schedule: ("function", "args", "unique"),
    ScheduleState: ("declared",),
    Fire: ("error",),
    Join: (),
}
"""The fields with bytes."""


def encode(value: Schedule | ScheduleState | Fire | Join, **more: Any) -> bytes:
    """Return a value as a node's data; ``more`` are fields that are not its own."""
    fields = msgspec.to_builtins(value, builtin_types=(bytes,))
    for field in _BYTES[type(value)]:
        records.text(fields.pop(field, b""), field, fields)
    return records.encode(fields | more)


def decode(data: bytes, kind: type[T]) -> T:
    """Return the value of a node's data."""
    return _convert(records.decode(data), kind)


def _convert(fields: dict[str, Any], kind: type[T]) -> T:
    for field in _BYTES[kind]:
        fields[field] = records.untext(fields, field)
    return msgspec.convert(fields, kind, builtin_types=(bytes,))


def decode_schedule(name: str, data: bytes) -> tuple[Schedule, str]:
    """Return a schedule, and what could not be read of it; see ``schedules.codecs``."""
    return _decode_part(data, Schedule, {"function": b""}, {"name": name})


def decode_state(data: bytes) -> tuple[ScheduleState, str]:
    """Return the state of a schedule, and what could not be read of it."""
    return _decode_part(data, ScheduleState, {}, {})


def _decode_part(data: bytes, kind: type[T], defaults: dict[str, Any], key: dict[str, Any]) -> tuple[T, str]:
    fields: dict[str, Any] = {}
    try:
        fields = records.decode(data)
        return _convert(fields, kind), ""
    except UNREADABLE as error:
        return readable_part(kind, fields, defaults, key), f"{error}"


class Row:
    """A row with the keys of the rows that have joined its job."""

    __slots__ = ("fire", "joined")

    def __init__(self, fire: Fire, joined: Sequence[Key] = ()) -> None:
        self.fire = fire
        self.joined = joined

    def encode(self) -> bytes:
        """Return it as a node's data."""
        return encode(self.fire, **({"joined": self.joined} if self.joined else {}))


def decode_row(schedule: str, fire_us: int, data: bytes) -> Row:
    """Return the row of a fire time."""
    key = {"schedule": schedule, "fire_us": fire_us}
    fire, unread = _decode_part(data, Fire, {"state": FireState.SKIPPED}, key)
    joined = () if unread else records.decode(data).get("joined", ())
    return Row(fire, [(name, at) for name, at in joined])


def history(forgotten_us: int) -> bytes:
    """Return the data of the parent of a schedule's rows: the fire time up to which they were dropped."""
    return records.encode({"forgotten_us": forgotten_us})


def forgotten_us(data: bytes) -> int:
    """Return the fire time up to which rows were dropped; 0 if none were."""
    return int(records.decode(data).get("forgotten_us", 0))


# ---- the changes of the catalogue ----

CHANGED_NAMES: Final = 500
"""Names of changed specifications that the catalogue keeps, for nodes with an older version in their cache."""


def changes_since(data: bytes, version: int) -> set[str] | None:
    """Return the schedules whose specifications have changed after a version; None if that version is too old."""
    record = records.decode(data)
    if version < record.get("since", 0):
        return None
    return {name for at, names in record.get("changed", ()) if at > version for name in names}


def changed(data: bytes, version: int, names: Sequence[str]) -> bytes:
    """Return the catalogue's data after one more change, which gives it ``version``."""
    record = records.decode(data)
    since, changes = record.get("since", 0), [*record.get("changed", ()), [version, list(names)]]
    while sum(len(names) for _, names in changes) > CHANGED_NAMES:
        since = changes.pop(0)[0]
    return records.encode({"since": since, "changed": changes})


# ---- declarations ----


def declarations(app: str, data: bytes) -> list[Declared]:
    """Return the declarations of an App."""
    return [
        Declared(Deployment(app, bytes.fromhex(digest), first_us), last_us)
        for digest, (first_us, last_us) in records.decode(data).get("declarations", {}).items()
    ]


def declare(app: str, data: bytes, digest: bytes, now_us: int) -> bytes:
    """Return the data of an App's declarations after one more."""
    record = records.decode(data)
    registered = record.get("declarations", {})
    # Later than the others, also if the clock was set back.
    new_us = max(now_us, *(times[0] + 1 for times in registered.values()), 0)
    first_us = registered.get(digest.hex(), (new_us,))[0]
    return records.encode({"app": app, "declarations": registered | {digest.hex(): [first_us, now_us]}})
