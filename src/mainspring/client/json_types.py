"""Values of payloads in JSON. A value arrives as it was given, or is refused with its place.

Most payloads hold nothing that JSON could change, and a few searches in their bytes show it. Others are read and written again,
which shows keys that are one key in JSON, or are walked through in Python.

Types that msgspec does not know are those of `register_type`, and Pydantic's. msgspec calls the hooks of this module for such
types alone, so others cost nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from datetime import UTC, datetime, time, timedelta
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, get_origin

import msgspec

from mainspring.client import pydantic_models
from mainspring.client.inside import keeps_inexact_values
from mainspring.client.options import refusal
from mainspring.client.pydantic_models import is_known
from mainspring.errors import PayloadError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

_OF_JSON = (str, int, float, bool, type(None), list, dict)


class _Form(NamedTuple):
    """The form of a type in JSON."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_forms: dict[type[Any], _Form] = {}
"""The forms of registered types. A class has one form in a process, as it has one ``__eq__``: no App owns it."""


def register_type(kind: type[T], *, encode: Callable[[T], Any], decode: Callable[[Any], T]) -> None:
    """Give a class a form in JSON, for arguments, results and signals of all Apps of this process.

    ``encode`` gets an instance, also one of a subclass, and returns a value that JSON can represent. ``decode`` gets that value
    as JSON has it, and returns an instance; it raises ValueError or TypeError for other values. A second registration replaces
    the first. Call it in the module of the class, so that submitters and workers do.

    Raises UsageError for something that is no class, and for a class that has a form already.
    """
    given: object = kind
    if not isinstance(given, type):
        raise refusal("the type", "a class", given)
    for name, function in (("encode", encode), ("decode", decode)):
        if not callable(function):
            raise refusal(name, "a function", function)
    if pydantic_models.is_known(kind):
        raise UsageError(
            f"{kind.__name__} is a type of Pydantic, which reads and writes it: give it a serializer there"
        )
    if type(msgspec.inspect.type_info(kind)) is not msgspec.inspect.CustomType:
        raise UsageError(
            f"{kind.__name__} has a form in JSON already (it is a builtin, a dataclass, a Struct, an Enum or the like): register"
            " a class that has none"
        )
    _forms[kind] = _Form(encode, decode)


def is_supported(kind: Any) -> bool:
    """Return whether values of JSON can be read as a class that msgspec does not know."""
    if kind in _forms or pydantic_models.is_known(kind):
        return True
    try:
        return any(issubclass(one, kind) for one in _OF_JSON)
    except TypeError:  # a protocol that cannot be checked
        return False


def to_plain(value: Any) -> Any:
    """Return a value as JSON has it, the same in every process: keys and members of sets are sorted.

    Raises the errors that `json_encoding.encode_json` catches.
    """
    return msgspec.to_builtins(value, order="deterministic", str_keys=True, enc_hook=_plain_hook)


def sorted_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments as JSON has them, with sorted sets and keys; unchanged if JSON cannot represent one."""
    try:
        return tuple(map(to_plain, args)), to_plain(kwargs) if kwargs else kwargs
    except (TypeError, ValueError, OverflowError, RecursionError, PayloadError):
        return args, kwargs  # the encoder raises an error that names the argument


# ---- the hooks of msgspec ----


def write_hook(value: Any) -> Any:
    """Return a value that msgspec can write in place of another one.  Raises TypeError if there is none."""
    form = _form_of(type(value))
    if form is not None:
        return _encoded(form, value)
    if pydantic_models.is_known(type(value)):
        return pydantic_models.write(value)
    raise _unknown(value)


def _plain_hook(value: Any) -> Any:
    form = _form_of(type(value))
    if form is not None:
        return _encoded(form, value)
    if pydantic_models.is_known(type(value)):
        return pydantic_models.plain(value)
    raise _unknown(value)


def builtins_hook(value: Any) -> Any:
    """Return what JSON has of a value that msgspec does not know.  Raises as `write_hook`."""
    written = write_hook(value)
    return msgspec.json.decode(written) if isinstance(written, msgspec.Raw) else written


def finite_hook(value: Any) -> Any:
    """Return the parts of an encodable value, to find numbers that are not finite.  Raises nothing."""
    form = _form_of(type(value))
    with contextlib.suppress(Exception):
        if form is not None:
            return form.encode(value)
        if pydantic_models.is_known(type(value)):
            return pydantic_models.finite_values(value)
    return None


def values_of(value: Any) -> Any:
    """Return the parts of an encodable value that msgspec does not know, as Python has them; None if there are none."""
    form = _form_of(type(value))
    with contextlib.suppress(Exception):
        if form is not None:
            return form.encode(value)
        if pydantic_models.is_known(type(value)):
            return pydantic_models.values_of(value)
    return None


def read_hook(kind: Any, value: Any) -> Any:
    """Return a value of JSON as a class.  Raises ValueError or TypeError, to which msgspec adds the place."""
    cls = get_origin(kind) or kind
    form = _forms.get(cls)
    if form is not None:
        try:
            return form.decode(value)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{cls.__name__}: {error}") from error
        except Exception as error:
            raise ValueError(f"decode of {cls.__name__} raised {type(error).__name__}: {error}") from error
    if pydantic_models.is_known(cls):
        return pydantic_models.read_model(kind, value)
    return value  # msgspec checks that it is an instance


def _form_of(kind: type[Any]) -> _Form | None:
    if not _forms:
        return None
    return next((_forms[one] for one in kind.__mro__ if one in _forms), None)


def _encoded(form: _Form, value: Any) -> Any:
    try:
        return form.encode(value)
    except Exception as error:
        name = type(value).__name__
        raise PayloadError(f"encode of {name} raised {type(error).__name__}: {error}") from error


def _unknown(value: Any) -> TypeError:
    name = type(value).__name__
    return TypeError(
        f"Encoding objects of type {name} is unsupported: register_type({name}, …) gives it a form in JSON"
    )


# ---- readers ----


class Reader(NamedTuple):
    """How msgspec reads the values of an annotation: as ``kind``; then ``finish``, if given, reads the raw JSON."""

    kind: Any
    finish: Callable[[bytes], Any] | None = None


def reader_of(annotation: Any) -> Reader:
    """Return how to read an annotation."""
    if pydantic_models.is_named_in(annotation):
        read = pydantic_models.reader(annotation)
        if read is not None:
            return Reader(msgspec.Raw, read)
    return Reader(annotation)


def problem_of(annotation: Any, *, is_loading: bool = False) -> str:
    """Return why no value of JSON can be read by an annotation; empty if some can.

    ``is_loading``: the module still loads. Names in fields of a class may be defined later, and are no problem yet.
    """
    if pydantic_models.is_named_in(annotation):
        if is_loading:
            return ""  # Pydantic completes a model when its module has loaded
        if pydantic_models.reader(annotation) is not None:
            return pydantic_models.unfinished(annotation)
    try:
        msgspec.json.Decoder(annotation, dec_hook=read_hook)
        unsupported = _unsupported(msgspec.inspect.type_info(annotation), set())
    except Exception as error:  # noqa: BLE001 - a TypeError, or any error of a field's annotation that cannot be resolved
        return "" if is_loading and not isinstance(error, TypeError) else str(error)
    if unsupported is None:
        return ""
    name = getattr(unsupported, "__qualname__", unsupported)
    return (
        f"JSON has no values of type {name}; use a dataclass, or give the class a form with register_type({name}, …) before this"
        " definition"
    )


def _unsupported(found: Any, seen: set[int]) -> Any:
    """Return a class without which no value can be read, and which is not supported; None if there is none."""
    if id(found) in seen:
        return None
    seen.add(id(found))
    if isinstance(found, msgspec.inspect.CustomType):
        return None if is_supported(found.cls) else found.cls
    if isinstance(found, msgspec.inspect.UnionType):
        problems = [_unsupported(one, seen) for one in found.types]
        return problems[0] if all(one is not None for one in problems) else None
    parts: list[Any] = []
    for name in getattr(found, "__struct_fields__", ()):
        value = getattr(found, name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, msgspec.inspect.Field):
                parts += [one.type] if one.required else []
            elif isinstance(one, msgspec.inspect.Type):
                parts.append(one)
    return next((problem for one in parts if (problem := _unsupported(one, seen)) is not None), None)


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
        raise json_refusal(value, what, names, error) from error
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
        raise json_refusal(value, what, names)


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


def json_refusal(value: Any, what: str, names: Names | None, error: BaseException | None = None) -> PayloadError:
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
