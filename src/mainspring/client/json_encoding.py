"""The JSON encoder for payloads. Its errors name the place of a value that JSON cannot represent."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.client.json_types import finite_hook, write_hook
from mainspring.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_encode = msgspec.json.Encoder(enc_hook=write_hook).encode
_TIME: Final = re.compile(rb'T[0-9]{2}:[0-9]{2}:[0-9.]+[+-][0-9]{2}:[0-9]{2}"')
"""A time of day with its offset from UTC."""
_ERRORS = (TypeError, ValueError, OverflowError, RecursionError, PayloadError)


def encode_json(value: Any, what: str, name: Callable[[int | str], str] | None = None) -> bytes:
    """Encode a value as JSON.

    ``what`` names the value in errors. If the parts of a list or an object have names of their own, ``name`` returns the name
    of the part at an index or under a key.

    Raises PayloadError if JSON cannot represent the value, such as NaN and Infinity.
    """
    try:
        written = _encode(value)
    except _ERRORS as error:
        if name is not None and (place := _unwritable(value)) is not None:
            what = name(place)
        raise PayloadError(f"{what} cannot be written as JSON: {error}") from error
    # The encoder writes null for numbers that are not finite, so most values need no second check.
    if b"null" in written and (found := _not_finite(value)) is not None:
        path, number = found
        if name is not None:
            what, path = name(path[0]), path[1:]
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
        raise PayloadError(
            f"{what}{f' at {where}' if where else ''} is {number}, which JSON cannot represent: pass None or text instead"
        )
    check_offsets(written, value, what)
    return written


def check_offsets(written: bytes, value: Any, what: str) -> None:
    """Raise PayloadError if the JSON of a value has a time whose offset from UTC was rounded. ``what`` names the value."""
    if (
        b"T" not in written or _TIME.search(written) is None
    ):  # the first test is much faster, and most payloads have no time
        return
    found = _inexact_offset(value)
    if found is not None:
        raise PayloadError(
            f"{what} has the time {found}, whose offset from UTC has seconds, which JSON cannot represent: convert it to UTC with"
            " astimezone, or pass text instead"
        )


def _inexact_offset(value: Any) -> datetime | None:
    """Return a time whose offset from UTC is not in whole minutes: the encoder rounds it."""
    unchecked = [msgspec.to_builtins(value, str_keys=True, builtin_types=(datetime,), enc_hook=write_hook)]
    while unchecked:
        one = unchecked.pop()
        if isinstance(one, datetime):
            offset = one.utcoffset()
            if offset is not None and offset % timedelta(minutes=1):
                return one
        elif isinstance(one, dict):
            unchecked += one.values()
        elif isinstance(one, (list, tuple)):
            unchecked += one
    return None


def _unwritable(value: Any) -> int | str | None:
    """Return the index or key of the first part that JSON cannot represent; None if no single part is to blame."""
    parts: Iterable[tuple[int | str, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
    for place, part in parts:
        try:
            _encode(part)
        except _ERRORS:
            return place
    return None


def _not_finite(value: Any) -> tuple[tuple[int | str, ...], float] | None:
    """Return the path to a NaN or an infinity in an encodable value, and that number; None if there is none."""
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=finite_hook)
    unchecked: list[tuple[tuple[int | str, ...], Any]] = [((), plain)]
    while unchecked:
        path, one = unchecked.pop()
        if isinstance(one, float):
            if not isfinite(one):
                return path, one
        elif isinstance(one, (dict, list, tuple)):
            inner: Iterable[tuple[int | str, Any]] = one.items() if isinstance(one, dict) else enumerate(one)
            parts = [((*path, key), part) for key, part in inner if isinstance(part, (float, dict, list, tuple))]
            unchecked += reversed(parts)  # the first is checked next
    return None
