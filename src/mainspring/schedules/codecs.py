"""Codecs for schedules, their states and the rows of their fire times in stores whose values are bytes.

A value that this version cannot read (a newer version wrote it, or it is damaged) costs that value alone: reads never fail. A
schedule that is read without some of its values says so, and its node sets it aside (``faults``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from mainspring.schedules.model import Fire, FireState, Schedule, ScheduleState
from mainspring.schedules.reconcile import Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T", bound=msgspec.Struct)

encode: Final = msgspec.msgpack.Encoder().encode
_decode_schedule: Final = msgspec.msgpack.Decoder(Schedule).decode
_decode_state: Final = msgspec.msgpack.Decoder(ScheduleState).decode
_decode_fire: Final = msgspec.msgpack.Decoder(Fire).decode
UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors of stored values that cannot be decoded."""


def decode_schedule(name: str, data: bytes) -> tuple[Schedule, str]:
    """Return a schedule, and what could not be read of it; empty if all could."""
    try:
        return _decode_schedule(data), ""
    except UNREADABLE as error:
        return _decoded_part(Schedule, data, {"function": b""}, {"name": name}), f"{error}"


def decode_state(data: bytes) -> tuple[ScheduleState, str]:
    """Return the state of a schedule, and what could not be read of it; empty if all could."""
    try:
        return _decode_state(data), ""
    except UNREADABLE as error:
        return _decoded_part(ScheduleState, data, {}, {}), f"{error}"


def decode_stored(name: str, schedule: bytes, state: bytes) -> Stored:
    """Return a schedule with its state."""
    decoded, unread = decode_schedule(name, schedule)
    decoded_state, unread_state = decode_state(state)
    return Stored(decoded, decoded_state, unread or unread_state)


def decode_fires(rows: Iterable[bytes]) -> list[Fire]:
    """Return rows, without those that are so damaged that they do not name their schedules and fire times."""
    return [fire for row in rows if (fire := _fire(row, {})) is not None]


def decode_fire(schedule: str, fire_us: int, data: bytes) -> Fire:
    """Return the row of a fire time. A state that cannot be read counts as skipped: it needs nothing more."""
    fire = _fire(data, {"schedule": schedule, "fire_us": fire_us})
    assert fire is not None, "it has its key"
    return fire


def _fire(data: bytes, key: Mapping[str, Any]) -> Fire | None:
    try:
        return _decode_fire(data)
    except UNREADABLE:
        try:
            return _decoded_part(Fire, data, {"state": FireState.SKIPPED}, key)
        except TypeError:
            return None


def _decoded_part(kind: type[T], data: bytes, defaults: Mapping[str, Any], key: Mapping[str, Any]) -> T:
    """Return a struct with those of its fields that can be read. Raises TypeError if a required one is missing."""
    try:
        raw = msgspec.msgpack.decode(data)
    except UNREADABLE:
        raw = {}
    return readable_part(kind, raw if isinstance(raw, dict) else {}, defaults, key)


def readable_part(kind: type[T], raw: Mapping[str, Any], defaults: Mapping[str, Any], key: Mapping[str, Any]) -> T:
    """Return a struct with those of its decoded fields that can be read. Raises TypeError if a required one is missing."""
    values = dict(defaults)
    for field in msgspec.structs.fields(kind):
        if field.name in raw:
            try:
                values[field.name] = msgspec.convert(raw[field.name], field.type, builtin_types=(bytes,))
            except UNREADABLE:
                continue
    return kind(**{**values, **key})
