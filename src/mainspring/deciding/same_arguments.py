"""Arguments of earlier code: whether recorded ones are those of a call, although its types have changed safely since.

A field that a record lacks is no difference if the value of today's code has its default: it was added since. Neither is the
way in which an argument is given, by position or by name, nor that of a number, 1 or 1.0. A digest can only be compared with that
of what earlier code would have recorded, so `earlier_payloads` builds that.
"""

from __future__ import annotations

import dataclasses
from itertools import chain, combinations, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mainspring.client import pydantic_models
from mainspring.client.json_encoding import encode_json
from mainspring.client.json_types import to_plain
from mainspring.client.payload import Signature
from mainspring.errors import PayloadError
from mainspring.workflows.payloads import RedactedPayload, same_values

if TYPE_CHECKING:
    from collections.abc import Iterator

_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_MOST: Final = 500
"""Payloads that are tried for a digest."""
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError, PayloadError)


class _Field(NamedTuple):
    """A field of a dataclass, a Struct or a model."""

    name: str
    key: str
    """Its name in JSON."""
    default: Any
    factory: Any

    def is_default(self, value: Any) -> bool:
        if self.factory is not msgspec.NODEFAULT:
            return bool(value == self.factory())
        return self.default is not msgspec.NODEFAULT and bool(value == self.default)


def same_arguments(codec: Any, args: tuple[Any, ...], kwargs: dict[str, Any], recorded: bytes) -> bool:
    """Return whether a recorded payload has the arguments of a call."""
    if isinstance(recorded, RedactedPayload):
        return False
    try:
        given = msgspec.json.decode(recorded) if recorded else []
        if not isinstance(codec, Signature):
            return bool(args or kwargs) and _fits(given, args[0] if args else kwargs)
        if codec.raw:
            return False
        theirs = codec.bound(given if isinstance(given, list) else () if isinstance(given, dict) else (given,), given)
        ours = codec.bound(args, kwargs)
        defaults = codec.defaults()
        return theirs.keys() <= ours.keys() | defaults.keys() and all(
            _fits(theirs[name], ours.get(name, defaults.get(name)))
            if name in theirs
            else name in defaults and bool(ours[name] == defaults[name])
            for name in ours.keys() | theirs.keys()
        )
    except _UNREADABLE:
        return False


def same_result(value: Any, recorded: bytes) -> bool:
    """Return whether a recorded payload is a value."""
    try:
        return not isinstance(recorded, RedactedPayload) and _fits(msgspec.json.decode(recorded), value)
    except _UNREADABLE:
        return False


def _fits(recorded: Any, value: Any) -> bool:
    """Return whether recorded JSON is a value of today's code."""
    fields = _fields_of(value)
    if fields and isinstance(recorded, dict):
        tag = _tag_of(value)
        if tag.keys() - recorded.keys() or any(recorded[key] != one for key, one in tag.items()):
            return False
        written = to_plain(value) if pydantic_models.is_known(type(value)) else {}
        return recorded.keys() <= {field.key for field in fields} | tag.keys() and all(
            _fits(recorded[field.key], _part(value, field, written))
            if field.key in recorded
            else field.is_default(getattr(value, field.name))
            for field in fields
        )
    if isinstance(value, (list, tuple)) and isinstance(recorded, list):
        return len(value) == len(recorded) and all(map(_fits, recorded, value))
    if isinstance(value, (set, frozenset)) and isinstance(recorded, list):  # results have them in any order
        plain = to_plain(value)
        return len(plain) == len(recorded) and all(
            map(same_values, *(sorted(one, key=_encode) for one in (recorded, plain)))
        )
    if isinstance(value, dict) and isinstance(recorded, dict) and all(isinstance(key, str) for key in value):
        return value.keys() == recorded.keys() and all(_fits(recorded[key], value[key]) for key in value)
    return same_values(recorded, to_plain(value))


def _part(value: Any, field: _Field, written: dict[str, Any]) -> Any:
    """Return the value of a field to be compared. A model may have written it in its own way: then, what it has written."""
    part = getattr(value, field.name)
    has_own_form = (
        field.key in written and not isinstance(part, (list, tuple, set, frozenset, dict)) and not _fields_of(part)
    )
    return written[field.key] if has_own_form else part


def _fields_of(value: Any) -> list[_Field]:
    """Return the fields of a dataclass, Struct or model that is written as an object; nothing for other values."""
    if pydantic_models.is_model(type(value)):
        return [_Field(*one) for one in pydantic_models.fields_of(value)]
    if isinstance(value, msgspec.Struct):
        if value.__struct_config__.array_like:
            return []
        return [
            _Field(one.name, one.encode_name, one.default, one.default_factory)
            for one in msgspec.structs.fields(type(value))
        ]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return []
    missing, none = dataclasses.MISSING, msgspec.NODEFAULT
    return [
        _Field(
            one.name,
            one.name,
            none if one.default is missing else one.default,
            none if one.default_factory is missing else one.default_factory,
        )
        for one in dataclasses.fields(value)
    ]


def _tag_of(value: Any) -> dict[str, Any]:
    config = getattr(value, "__struct_config__", None)
    return {} if config is None or config.tag is None else {config.tag_field: config.tag}


# ---- for digests ----


def earlier_payloads(codec: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[bytes]:
    """Return what earlier code may have recorded for the arguments of a call, the likeliest first."""
    return islice(_earlier_payloads(codec, args, kwargs), _MOST)


def _earlier_payloads(codec: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[bytes]:
    if not isinstance(codec, Signature) or codec.raw:
        return
    try:
        names = codec.bound(args, kwargs)
        found: dict[tuple[type[Any], str], bool] = {}
        _collect([*args, *kwargs.values()], found)
        defaults = codec.defaults()
        added = [key for key, always in found.items() if always]
        added += [(Signature, name) for name in names if name in defaults and bool(names[name] == defaults[name])]
        for without in chain.from_iterable(combinations(added, size) for size in range(len(added) + 1)):
            left_out = frozenset(without)
            plain = {k: _written(value, left_out) for k, value in names.items() if (Signature, k) not in left_out}
            for numbers in (_as_is, _as_integers, _as_floats):
                changed = numbers(plain)
                yield encode_json(list(changed.values()), codec.name) if changed else b""
                yield encode_json(changed, codec.name) if changed else b""
    except _UNREADABLE:
        return


def _collect(value: Any, found: dict[tuple[type[Any], str], bool]) -> None:
    """Find the fields with defaults, and whether all their values are defaults."""
    fields = _fields_of(value)
    for field in fields:
        inner = getattr(value, field.name)
        key = (type(value), field.key)
        found[key] = found.get(key, True) and field.is_default(inner)
        _collect(inner, found)
    if isinstance(value, (list, tuple, set, frozenset, dict)) and not fields:
        for one in value.values() if isinstance(value, dict) else value:
            _collect(one, found)


def _written(value: Any, without: frozenset[tuple[type[Any], str]]) -> Any:
    """Return a value as JSON has it, without these fields."""
    fields = _fields_of(value)
    if fields:
        plain = to_plain(value)
        for field in fields:
            if (type(value), field.key) in without:
                plain.pop(field.key, None)
            elif field.key in plain:
                plain[field.key] = _written(_part(value, field, plain), without)
        return plain
    if isinstance(value, (list, tuple)):
        return [_written(one, without) for one in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _written(value[key], without) for key in sorted(value)}
    return to_plain(value)


def _as_is(value: Any) -> Any:
    return value


def _as_integers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return _inside(value, _as_integers)


def _as_floats(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _inside(value, _as_floats)


def _inside(value: Any, change: Any) -> Any:
    if isinstance(value, list):
        return [change(one) for one in value]
    return {key: change(one) for key, one in value.items()} if isinstance(value, dict) else value
