"""Types that msgspec does not know, in payloads: those of `register_type`, and Pydantic's.

msgspec calls the hooks of this module for such types alone, so others cost nothing.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_origin

import msgspec

from mainspring.client import pydantic_models
from mainspring.client.validation import refusal
from mainspring.errors import PayloadError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

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
