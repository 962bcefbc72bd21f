"""Stored schedules: codecs for stores whose values are bytes, and faults of what is stored.

The codecs are for schedules, their states and the rows of their fire times. A fault is the reason why this node cannot decide
the fire times of a schedule, although another node or version could.
"""

from __future__ import annotations

from datetime import date
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from mainspring.errors import UsageError
from mainspring.schedules import triggers
from mainspring.schedules.model import Cron, Every, Fire, FireState, Schedule, ScheduleState
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


def fault_of(stored: Stored) -> str:
    """Return why this node cannot decide the fire times of a schedule; empty if it can."""
    if stored.unread:
        return f"this version of Mainspring cannot read it: {stored.unread}"
    return fault(stored.schedule)


def fault(schedule: Schedule) -> str:
    """Return what this node does not know of a schedule: its zone, its expression, a date; empty if it knows all.

    A zone that becomes known later, because it is installed, is found then.
    """
    try:
        match schedule.trigger:
            case Cron(expression):
                triggers.time_zone(schedule.timezone)
                triggers.parse(expression)
            case Every(interval_us) if interval_us <= 0:
                return f"its interval is {interval_us} microseconds"
            case _:
                pass
        if schedule.exclude:
            triggers.time_zone(schedule.timezone)
            _check_dates(schedule.exclude)
    except UsageError as error:
        return str(error)
    if not (isfinite(schedule.jitter) and isfinite(schedule.misfire_after)):
        return "its jitter or misfire_after is no finite number"
    return ""


@lru_cache(maxsize=1000)
def _check_dates(days: tuple[str, ...]) -> None:
    for day in days:
        try:
            date.fromisoformat(day)
        except ValueError:
            raise UsageError(f"exclude has {day!r}, which is not a date") from None
