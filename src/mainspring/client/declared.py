"""Declared requests, made of what programs pass to methods, and their typed answers.

This module loads `mainspring.api`, which takes 50 ms: `connections` imports it at the first request.
"""

from __future__ import annotations

from base64 import b64encode
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec
from msgspec import UNSET

from mainspring.api import functions, jobs, operations, schedules, workflows
from mainspring.api.request import Request, answer_type, params_of
from mainspring.client.json_types import encode_json
from mainspring.client.options import Rate, Retry, instant, refusal, seconds
from mainspring.errors import ServerError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

DURATIONS: Final = ("delay", "expires", "timeout", "every", "jitter", "misfire_after", "start_within", "deadline")
"""Fields with seconds. Methods take durations."""
INSTANTS: Final = (
    *("run_at", "expires_at", "created_from", "created_to", "until", "since", "at", "start", "end", "from_", "to"),
)
"""Fields with a time. Methods take an aware datetime."""
ARGUMENTS: Final = "args"
"""The field with the arguments of a job or run. Methods take bytes, which are sent as they are, or a value for JSON."""
NEVER: Final = ("namespace", "payload")
"""Fields that no method has: the App has a namespace, and ``args`` may be bytes."""
_SUBJECTS: Final = (operations, schedules, functions, jobs, jobs, jobs, schedules, workflows)


def _requests() -> dict[str, type[Request[Any]]]:
    found = (value for module in _SUBJECTS for value in vars(module).values())
    return {kind.call: kind for kind in found if isinstance(kind, type) and issubclass(kind, Request) and kind.call}


REQUESTS: Final = _requests()


def params(call: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of a call for the arguments of its method. Raises UsageError and PayloadError.

    Raises TypeError for an argument that the method does not have.
    """
    kind = REQUESTS[call]
    names = {one.name: one for one in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if value is UNSET:
            continue
        if name in NEVER or (name not in names and name != ARGUMENTS):
            raise TypeError(f"{call} has no argument {name!r}")
        if name == ARGUMENTS:
            values["payload"] = b64encode(_payload(call, value)).decode()
        else:
            field = names[name]
            values[field.encode_name] = _value(name, value, is_number=_has_numbers(field.type))
    try:
        return params_of(msgspec.convert(values, kind))
    except msgspec.ValidationError as error:
        raise UsageError(f"{call}: {error}") from None


def answer(call: str, value: Any) -> Any:
    """Return a typed answer. Raises ServerError for one that a server of another version has written differently."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=answer_type(REQUESTS[call]))
    except msgspec.ValidationError as error:
        raise ServerError(f"the answer to {call} cannot be read ({error}): the server has another version") from None


def _payload(call: str, value: Any) -> bytes:
    return value if isinstance(value, bytes) else encode_json(value, f"the arguments of {call}")


def _has_numbers(kind: Any) -> bool:
    """Return whether a type is a number or includes one, with a limit or without."""
    return kind is float or any(map(_has_numbers, get_args(kind)))


def _value(name: str, value: Any, *, is_number: bool) -> Any:
    if value is None:
        return None
    if name in INSTANTS:
        time = instant(value, name)  # refuses naive ones
        return time if is_number else value
    if name in DURATIONS:
        return seconds(value, name)
    if isinstance(value, Retry):
        return value.wire()
    if isinstance(value, Rate):
        return msgspec.to_builtins(value.spec())
    if isinstance(value, dict):
        return msgspec.json.decode(encode_json(value, name))
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return _text(value)
    return [_text(one) for one in value]


def _text(value: Any) -> Any:
    """Return a day or the name of a task, a workflow or a function as text; other values as they are."""
    if isinstance(value, datetime):
        raise refusal("a day", "a date, such as date(2030, 12, 24)", value)
    if isinstance(value, date):
        return value.isoformat()
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else value
