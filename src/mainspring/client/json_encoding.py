"""The JSON encoder for payloads. A value arrives as it was given, or is refused with its place.

Most payloads hold nothing that JSON could change, and a few searches in their bytes show it. Others are read and written again,
which shows keys that are one key in JSON, or are walked through in Python.
"""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime, time, timedelta
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from mainspring.client.inside import keeps_inexact_values
from mainspring.client.json_types import builtins_hook, finite_hook, values_of, write_hook
from mainspring.client.pydantic_models import is_known
from mainspring.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Iterator

_encode = msgspec.json.Encoder(enc_hook=write_hook).encode
_decode = msgspec.json.decode
_pack = msgspec.msgpack.Encoder(enc_hook=finite_hook).encode
ERRORS: Final = (TypeError, ValueError, OverflowError, RecursionError, PayloadError)
_NOT_FINITE: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""A NaN or an infinity in MessagePack, and rarely other bytes."""
_TIME: Final = re.compile(rb':[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})?"')
"""The end of a time. It begins with a colon, for which `re` searches fast. An offset of some seconds may be written as Z."""
_MINUTE: Final = timedelta(minutes=1)
_TEXT: Final = "which JSON cannot represent"


class Names(Protocol):
    """The names of the parts of a list or an object."""

    def name_of(self, place: int | str) -> str:
        """Return the name of the part at an index or under a key."""


def encode_json(value: Any, what: str, names: Names | None = None) -> bytes:
    """Encode a value as JSON.

    ``what`` names the value in errors. If the parts of a list or an object have names of their own, ``names`` has them.

    Raises PayloadError if JSON cannot represent the value, such as NaN and Infinity, or would change it, such as a dict with
    the keys 1 and "1".
    """
    try:
        written = write(value)
    except ERRORS as error:
        raise refusal(value, what, names, error) from error
    if b":" in written or b"null" in written:
        check(written, value, what, names)
    return written


# `encode_json` in two steps, for callers that call it often.


write = _encode
"""Return a value as JSON, or raise one of `ERRORS`. `check` has to be called if the JSON has ``:`` or ``null``."""


def check(written: bytes, value: Any, what: str, names: Names | None) -> None:
    """Raise PayloadError if JSON has changed a value: objects and times have a colon, and NaN is written as null."""
    if names is not None and type(value) is dict and written.count(b":") == len(value) and b"null" not in written:
        return  # keyword arguments without objects and times
    after_text = written.count(b'":')  # ends of keys; other colons are inside of text
    may_differ = (
        (b"null" in written and _may_have_nan(value))
        or (after_text > 0 and (b'nan":' in written or b'inf":' in written or _loses_keys(value, written)))
        or (written.count(b":") > after_text and _TIME.search(written) is not None and _has_inexact_time(value))
    )
    if may_differ and _find(value, is_written=True) is not None:
        raise refusal(value, what, names)


def _may_have_nan(value: Any) -> bool:
    try:
        return _NOT_FINITE.search(_pack(value)) is not None
    except Exception:  # noqa: BLE001 - such as an integer that MessagePack has no form for
        return True


def _loses_keys(value: Any, written: bytes) -> bool:
    """Return whether objects may have equal keys: as a dict, they have fewer."""
    try:
        return len(_encode(msgspec.to_builtins(value, str_keys=True, enc_hook=builtins_hook))) != len(written)
    except ERRORS:  # such as Raw, which is JSON already
        return True


def _has_inexact_time(value: Any) -> bool:
    """Return whether an encodable value has a time that JSON changes."""
    kept = (datetime, time)
    try:
        unchecked = [msgspec.to_builtins(value, builtin_types=kept, enc_hook=values_of)]
    except ERRORS:
        return True
    while unchecked:
        one = unchecked.pop()
        kind = type(one)
        if kind is dict:
            unchecked += [part for part in one.values() if type(part) in _SEARCHED]
            unchecked += [key for key in one if type(key) in kept]
        elif kind is list or kind is tuple or kind is set or kind is frozenset:
            unchecked += [part for part in one if type(part) in _SEARCHED]
        elif kind not in kept or (one.tzinfo not in {None, UTC} and _time_reason(one) is not None):
            return True
    return False


_SEARCHED: Final = frozenset({dict, list, tuple, set, frozenset, datetime, time})


def refusal(value: Any, what: str, names: Names | None, error: BaseException | None = None) -> PayloadError:
    """Return the error for a value that JSON cannot hold. ``error`` is the encoder's, if it has raised one."""
    text = "" if error is None else _text(error)
    path, reason = _find(value, is_written=error is None) or ((), f"cannot be written as JSON: {text}")
    if len(path) >= _DEPTH:
        path = ()
    if names is not None and path:
        what, path = names.name_of(path[0]), path[1:]
    where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return PayloadError(f"{what}{f' at {where}' if where else ''} {reason}")


_Path = tuple[int | str, ...]


class _Part(NamedTuple):
    """A part of a value, to be searched."""

    path: _Path
    value: Any
    is_models: bool = False
    """Whether it is in a model, whose keys Pydantic writes."""


def _find(value: Any, *, is_written: bool) -> tuple[_Path, str] | None:
    """Return the place of the first part that JSON cannot hold exactly, and the reason; None if there is none.

    ``is_written``: the encoder has accepted all parts.
    """
    stack = [_Part((), value)]
    while stack:
        part = stack.pop()
        path, one, is_models = part
        if (reason := _reason(part, is_written=is_written)) is not None:
            return path, reason
        inner = _parts(one) if len(path) < _DEPTH else None
        if inner is None and is_written:
            found = values_of(one)
            if found is not None:
                stack.append(_Part(path, found, is_models or is_known(type(one))))
        elif inner is not None:
            stack += reversed([_Part((*path, *key), value, is_models) for key, value in inner])  # the first is next
        else:
            try:
                _encode(one)
            except ERRORS as error:
                return path, f"cannot be written as JSON: {_text(error)}"
    return None


_DEPTH: Final = 1_000
"""Levels that are searched. Values that hold themselves have no end."""


def _reason(part: _Part, *, is_written: bool) -> str | None:
    """Return why JSON cannot hold a value apart from its parts; None if it can."""
    one = part.value
    if isinstance(one, float):
        return None if isfinite(one) else f"is {one}, {_TEXT}: pass None or text instead"
    if isinstance(one, (datetime, time)):
        return None if keeps_inexact_values() else _time_reason(one)
    if not isinstance(one, dict) or (is_written and all(type(key) is str for key in one)):
        return None
    return _key_reason(one, is_models=part.is_models)


def _time_reason(one: datetime | time) -> str | None:
    if one.tzinfo is None:
        return None
    offset = one.utcoffset()
    if offset is None:
        return (
            f"is the time {one} in the zone {one.tzinfo}, {_TEXT} without a date: pass a datetime, or the zone as text"
        )
    if not offset % _MINUTE:
        return None
    remedy = "convert it to UTC with astimezone" if isinstance(one, datetime) else "give it an offset in whole minutes"
    return f"is the time {one}, whose offset from UTC has seconds, {_TEXT}: {remedy}, or pass text instead"


def _key_reason(one: dict[Any, Any], *, is_models: bool) -> str | None:
    inexact = not keeps_inexact_values()
    seen: dict[str, Any] = {}
    for key in one:
        try:
            text = next(iter(_decode(_encode({key: 0}))))
        except UnicodeEncodeError as error:
            return f"has the key {_shown(key)}, {_TEXT}: {_text(error)}"
        except ERRORS:
            if not is_models:
                return (
                    f"has the key {_shown(key)} of type {type(key).__name__}, {_TEXT}: its keys are text; pass text, or a list"
                    " of pairs"
                )
            text = str(key)
        if isinstance(key, float) and not isfinite(key):
            return f"has the key {key}, {_TEXT}: pass text instead"
        if inexact and isinstance(key, (datetime, time)) and (reason := _time_reason(key)) is not None:
            return f"has a key that {reason}"
        if inexact and text in seen:
            return (
                f"has the keys {_shown(seen[text])} and {_shown(key)}, which are one key in JSON, {_shown(text)}: use keys of"
                " one type, or pass a list of pairs"
            )
        seen[text] = key
    return None


def _shown(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


_SHOWN: Final = 60


def _parts(one: Any) -> Iterator[tuple[_Path, Any]] | None:
    """Return the parts of a value that has some, each with its step of the path; None for other values."""
    if isinstance(one, dict):
        return (((key if isinstance(key, (int, str)) else str(key),), part) for key, part in one.items())
    if isinstance(one, (list, tuple, set, frozenset)):
        return (((index,), part) for index, part in enumerate(one))
    if isinstance(one, Enum):
        return iter((((), one.value),))
    names = one.__struct_fields__ if isinstance(one, msgspec.Struct) else _fields_of(type(one))
    if not names:
        return None
    fields = ((name, getattr(one, name, msgspec.UNSET)) for name in names)
    return (((name,), part) for name, part in fields if part is not msgspec.UNSET)


def _fields_of(kind: type[Any]) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return tuple(field.name for field in getattr(kind, "__attrs_attrs__", ()))


def _text(error: BaseException) -> str:
    """Return the encoder's reason. That of a lone surrogate has the codec's words."""
    if isinstance(error, UnicodeEncodeError):
        return (
            f"its text has {error.object[error.start : error.end]!r}, which is no character: decode the bytes it comes from "
            "with errors='replace'"
        )
    return str(error)
