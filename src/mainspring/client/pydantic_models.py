"""Models of Pydantic 2 in payloads: read by their own validators, and written by their own serializers.

Pydantic is no dependency. A process that has a model has imported Pydantic, so this module takes it from ``sys.modules``.

Models are written with their aliases and without computed fields, so that the same model can read them. They are read by alias
or by name. An annotation that names a model, such as ``list[Order] | None``, is read by Pydantic as a whole.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin
from uuid import UUID
from weakref import WeakKeyDictionary

import msgspec

from mainspring.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STARS = '"**********"'
"""The text that Pydantic writes in place of a secret."""
_BY_NAME = (2, 11)
"""The first version that can read by name and by alias at the same time."""
_STRICT_WARNINGS = (2, 8)
"""The first version that can raise an error for a value which does not have its field's type."""


class ModelError(ValueError):
    """A value does not fit a model. ``where`` is its place inside of the value, such as ``.lines[2].sku``.

    ``parameter`` is the name of the parameter, which its caller knows.
    """

    parameter = ""

    def __init__(self, text: str, where: str = "") -> None:
        super().__init__(f"{text} - at `${where}`" if where else text)
        self.text = text
        self.where = where


class ModelField(NamedTuple):
    """A field of a model: its name, its key in JSON, and its default, or the factory of it."""

    name: str
    key: str
    default: Any
    factory: Any


class _Pydantic(NamedTuple):
    adapter: Any
    """TypeAdapter."""
    invalid: type[Exception]
    """ValidationError."""
    reads: dict[str, Any]
    writes: dict[str, Any]


@cache
def _library() -> _Pydantic:
    pydantic = sys.modules["pydantic"]
    version = tuple(int(part) for part in str(pydantic.VERSION).split(".")[:2])
    writes: dict[str, Any] = {"by_alias": True, "round_trip": True}
    return _Pydantic(
        pydantic.TypeAdapter,
        pydantic.ValidationError,
        {"by_alias": True, "by_name": True} if version >= _BY_NAME else {},
        writes | {"warnings": "error"} if version >= _STRICT_WARNINGS else writes,
    )


# ---- which types are Pydantic's ----


def is_model(kind: Any) -> bool:
    """Return whether a class is a model."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_dump_json")


def is_known(kind: Any) -> bool:
    """Return whether Pydantic can read and write a class by itself: a model, or a type such as ``HttpUrl``."""
    return isinstance(kind, type) and (
        hasattr(kind, "__get_pydantic_core_schema__") or hasattr(kind, "__pydantic_validator__")
    )


def is_named_in(annotation: Any) -> bool:
    """Return whether an annotation names a model or another type of Pydantic, or has metadata for it."""
    if "pydantic" not in sys.modules:
        return False
    unchecked = [annotation]
    while unchecked:
        one = unchecked.pop()
        if is_known(one):
            return True
        if get_origin(one) is Annotated and any(map(_is_metadata, one.__metadata__)):
            return True
        unchecked += get_args(one)
        for name in ("__value__", "__supertype__"):  # of a type alias and of a NewType
            if not isinstance(one, type) and hasattr(one, name):
                unchecked.append(getattr(one, name))
    return False


def _is_metadata(one: Any) -> bool:
    return type(one).__module__.partition(".")[0] == "pydantic" or hasattr(one, "__get_pydantic_core_schema__")


# ---- read ----


def reader(annotation: Any) -> Callable[[bytes], Any] | None:
    """Return a function that reads JSON by an annotation which `is_named_in` is true for.  It raises ModelError.

    None if Pydantic cannot read all of it, such as a union of a model and a Struct.
    """
    pydantic = _library()
    try:
        validate = pydantic.adapter(annotation).validate_json
    except Exception:  # noqa: BLE001 - of several kinds, among them those of users' types; msgspec's error is shown instead
        return None

    def read(data: bytes) -> Any:
        try:
            return validate(data, **pydantic.reads)
        except pydantic.invalid as error:
            raise ModelError(*_describe(error)) from None
        except Exception as error:
            raise ModelError(f"its validation raised {type(error).__name__}: {error}") from error

    return read


def unfinished(annotation: Any) -> str:
    """Return why Pydantic cannot read an annotation yet, such as a model with a field of an unknown type; empty if it can."""
    pydantic = _library()
    try:
        pydantic.adapter(annotation).validate_json(b"null", **pydantic.reads)
    except pydantic.invalid:
        return ""
    except Exception as error:  # noqa: BLE001 - PydanticUserError, or that of a validator, which null may confuse
        is_users = type(error).__module__.partition(".")[0] == "pydantic"
        return str(error).partition("\n")[0] if is_users else ""
    return ""


def read_model(kind: Any, value: Any) -> Any:
    """Read a model from a value of JSON inside of a type that Pydantic does not read, such as a Struct.  Raises ModelError."""
    pydantic = _library()
    data = msgspec.json.encode(value)
    try:
        if is_model(kind):
            return kind.model_validate_json(data, **pydantic.reads)
        return _adapter(kind).validate_json(data, **pydantic.reads)
    except pydantic.invalid as error:
        text, where = _describe(error)
        raise ModelError(f"{kind.__name__}{where}: {text}") from None
    except Exception as error:
        raise ModelError(f"the validation of {kind.__name__} raised {type(error).__name__}: {error}") from error


def _describe(error: Any) -> tuple[str, str]:
    """Return the text and the place of the first error, without the value, which may be secret."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    first = found[0]
    text = str(first["msg"])
    if len(found) > 1:
        text += f" (and {len(found) - 1} more)"
    return text, "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])


_adapters: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def _adapter(kind: Any) -> Any:
    adapter = _adapters.get(kind)
    if adapter is None:
        adapter = _adapters[kind] = _library().adapter(kind)
    return adapter


# ---- write ----


def write(value: Any) -> msgspec.Raw:
    """Return a value of a type that `is_known` as JSON.

    Raises PayloadError for a value that Pydantic cannot write so that it can be read again.
    """
    try:
        if is_model(type(value)):
            text = str(value.model_dump_json(**_library().writes))
        else:
            text = _adapter(type(value)).dump_json(value, **_library().writes).decode()
    except PayloadError:
        raise
    except Exception as error:  # serializers of users raise anything
        raise _unwritable(value, error) from error
    if _STARS in text and _has_secret(_values(value)):
        raise PayloadError(
            f"{type(value).__name__} has a secret, which Pydantic writes as asterisks: give its field a serializer, or pass the"
            " secret's name and let the task look it up"
        )
    # With ser_json_inf_nan="constants", Pydantic writes what is no JSON.
    if ("NaN" in text or "Infinity" in text) and not _is_json(text):
        raise PayloadError(
            f"{type(value).__name__} has a number that is NaN or infinite, which JSON cannot represent: set it to None"
        )
    return msgspec.Raw(text.encode())


def plain(value: Any) -> Any:
    """Return a value of a type that `is_known` as values of JSON, the same in every process: members of sets are sorted.

    Raises PayloadError as `write` does.
    """
    write(value)  # checks it
    if not is_model(type(value)):
        return _adapter(type(value)).dump_python(value, mode="json", **_library().writes)
    return _sorted(value, value.model_dump(mode="json", **_library().writes))


def finite_values(value: Any) -> Any:
    """Return the values of a model as Python has them, to find those that JSON has no number for."""
    return values_of(value) if is_model(type(value)) and _may_have_floats(type(value)) else None


def values_of(value: Any) -> Any:
    """Return the values of a model as Python has them; None if it writes such as JSON has no form for in its own way."""
    if not is_model(type(value)) or value.model_config.get("ser_json_inf_nan") == "strings":
        return None
    return _values(value)


def _values(value: Any) -> Any:
    if not is_model(type(value)):
        return value if hasattr(value, "get_secret_value") else None
    try:
        return value.model_dump(**(_library().writes | {"warnings": False}))
    except Exception:  # noqa: BLE001 - such as a set of models, which has no such form
        return None


_floats: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
_WITHOUT_FLOATS = frozenset({int, str, bool, type(None), bytes, Decimal, datetime, date, time, timedelta, UUID})


def _may_have_floats(kind: Any) -> bool:
    """Return whether instances of a model may have floats. Most have none, and are not searched for NaN."""
    found = _floats.get(kind)
    if found is None:
        _floats[kind] = False  # of a model inside of itself
        annotations = [field.annotation for field in kind.model_fields.values()]
        found = kind.model_config.get("extra") == "allow" or any(map(_names_floats, annotations))
        _floats[kind] = found
    return found


def _names_floats(annotation: Any) -> bool:
    if (isinstance(annotation, type) and annotation in _WITHOUT_FLOATS) or get_origin(annotation) is Literal:
        return False
    if arguments := get_args(annotation):
        return any(one is not Ellipsis and _names_floats(one) for one in arguments)
    return not (is_model(annotation) and not _may_have_floats(annotation))


def _unwritable(value: Any, error: Exception) -> PayloadError:
    text = " ".join(line.strip() for line in str(error).splitlines())
    return PayloadError(f"{type(value).__name__}: {text.removeprefix('Pydantic serializer warnings: ')}")


def _has_secret(value: Any) -> bool:
    unchecked = [value]
    while unchecked:
        one = unchecked.pop()
        if hasattr(one, "get_secret_value"):
            return True
        if isinstance(one, Mapping):
            unchecked += one.values()
        elif isinstance(one, (list, tuple, set, frozenset)):
            unchecked += one
    return False


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


def _sorted(value: Any, written: Any) -> Any:
    """Return the JSON of a value with the members of its sets in an order that does not depend on the process."""
    if is_model(type(value)):
        if not isinstance(written, dict):  # a RootModel, or one with a serializer of its own
            return _sorted(value.root, written) if hasattr(value, "root") else written
        inner = {key: getattr(value, name) for name, key in _keys_of(type(value)) if key in written}
        inner |= getattr(value, "__pydantic_extra__", None) or {}
        return {key: _sorted(inner[key], one) if key in inner else one for key, one in written.items()}
    if dataclasses.is_dataclass(value) and isinstance(written, dict):
        return {key: _sorted(getattr(value, key), one) if hasattr(value, key) else one for key, one in written.items()}
    if isinstance(value, Mapping) and isinstance(written, dict) and len(value) == len(written):
        return {key: _sorted(one, written[key]) for one, key in zip(value.values(), written, strict=True)}
    if (
        not isinstance(value, (list, tuple, set, frozenset))
        or not isinstance(written, list)
        or len(value) != len(written)
    ):
        return written
    members = [_sorted(one, member) for one, member in zip(value, written, strict=True)]
    return sorted(members, key=_encode_sorted) if isinstance(value, (set, frozenset)) else members


_encode_sorted = msgspec.json.Encoder(order="deterministic").encode


# ---- fields ----


_keys: WeakKeyDictionary[Any, tuple[tuple[str, str], ...]] = WeakKeyDictionary()


def _keys_of(kind: Any) -> tuple[tuple[str, str], ...]:
    """Return the names of the fields of a model, and their keys in JSON."""
    keys = _keys.get(kind)
    if keys is None:
        fields = kind.model_fields.items()
        keys = tuple((name, field.serialization_alias or field.alias or name) for name, field in fields)
        _keys[kind] = keys
    return keys


def fields_of(value: Any) -> Iterator[ModelField]:
    """Return the fields of a model that is written as an object; nothing for a RootModel."""
    kind = type(value)
    if hasattr(value, "root"):
        return
    for name, key in _keys_of(kind):
        field = kind.model_fields[name]
        if field.exclude:
            continue
        required = field.is_required()
        default = msgspec.NODEFAULT if required or field.default_factory is not None else field.default
        factory = field.default_factory
        if factory is None or getattr(field, "default_factory_takes_validated_data", False):
            factory = msgspec.NODEFAULT
        yield ModelField(name, key, default, factory)
