"""Errors of side effects in histories: code gets the same error in its first execution and in each replay.

An error whose class and arguments JSON can name is built again from them. Another one becomes a JobFailed, as that of a step.
The first execution gets what a replay will get, and not the original error: that may have more attributes.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, Final

import msgspec

from mainspring.errors import JobFailed
from mainspring.jobs.failures import encodable, text_of

_TEXT_LIMIT: Final = 30_000
"""Characters of a message."""
_PLAIN: Final = (str, int, float, bool, type(None))


class _Recorded(msgspec.Struct, omit_defaults=True):
    """An error. The first two fields are those of ``jobs.failures.JobFailure``."""

    type: str
    message: str = ""
    module: str = "builtins"
    args: tuple[Any, ...] | None = None
    """The arguments of its class; None: it becomes a JobFailed."""


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Recorded).decode


def record_error(error: Exception, largest: int) -> bytes:
    """Encode an error, in at most about ``largest`` bytes."""
    kind, text = type(error), text_of(error)
    with suppress(Exception):  # an error's own methods may fail in any way
        reduced: Any = error.__reduce__()
        given = reduced[1]
        if reduced[0] is kind and all(isinstance(one, _PLAIN) for one in given):
            data = _encode(_Recorded(kind.__qualname__, text, kind.__module__, given))
            rebuilt = recorded_error("", data)
            if type(rebuilt) is kind and text_of(rebuilt) == text and len(data) <= largest:
                return data
    return _encode(_Recorded(encodable(kind.__qualname__), text[: min(_TEXT_LIMIT, largest // 4)]))


def recorded_error(handle: str, data: bytes) -> Exception:
    """Return the error of a side effect."""
    found = _decode(data)
    kind = None if found.args is None else _class_of(found)
    if kind is not None:
        with suppress(Exception):  # its class has changed
            error: Exception = kind(*(found.args or ()))
            return error
    return JobFailed(handle, found.type, found.message, None, 1)


def _class_of(found: _Recorded) -> Any:
    """Return the class of an error, if its module is imported; None otherwise."""
    kind: Any = sys.modules.get(found.module)
    for name in found.type.split("."):
        kind = getattr(kind, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else None
