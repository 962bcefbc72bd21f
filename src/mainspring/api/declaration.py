"""Declarations of requests: the place of each in the HTTP API, and the sentence and the names of its fields for people.

A request is declared once. The route and OpenAPI, the options of the command with their help, the inputs of a form, and the rows
of the references are read from here. Differences that a face makes on purpose stay in that face.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum, auto
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta, UnsetType

from mainspring.resources.rules import RateSpec
from mainspring.sizes import IS_OPTION, KIND

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PARAMETER: Final = re.compile(r"\{([a-z_]+)\}")
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


@dataclass(frozen=True, kw_only=True)
class Http:
    """The place of a request in the HTTP API. Write it with `get`, `post`, `put`, `patch` or `delete`.

    The fields of the request that are parameters of the path come from there. Of GET and DELETE, all others come from the query;
    of other methods, from the body.
    """

    method: Method
    path: str
    """In the namespace of the request, such as ``jobs/{handle}``; one that begins with ``/`` is in no namespace."""
    status: int = 200
    """The status of an answer."""
    others: Mapping[int, str] = field(default_factory=dict)
    """Other statuses of successful answers, with their descriptions."""
    location: str = ""
    """The path of what the request has made, in the namespace, with fields of the answer: ``jobs/{handle}``. If the answer has
    None there, nothing was made, and the status is 200; it is 200, too, if the answer has ``joined``."""
    problems: tuple[str, ...] = ()
    """The codes of its own problems, beside those of its object and of its store."""
    example: object = None
    """A body, or None."""
    answered: object = None
    """The answer to the example, or None."""
    summary: str = ""
    """One line; by default it is the first sentence of the request's docstring."""
    name: str = ""
    """The ``operationId``; by default it is the name of the call, such as ``jobs_show``."""
    limit: int | None = None
    """Bytes of the body; None: as usual."""
    secret: bool = False
    """Whether the answer has a secret. The node keeps no such answer, so the route takes no ``Idempotency-Key``."""
    stream: bool = False
    """Whether the answer is a stream of server-sent events."""
    resume: str = ""
    """The field that gets ``Last-Event-ID``, with which the client of a stream continues."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The fields of the request that are parts of the path."""
        return tuple(_PARAMETER.findall(self.path))


@dataclass(frozen=True, kw_only=True)
class Button:
    """The form of an act on the page of its object. An act whose page has a form of its own declares none."""

    label: str
    """The words on the button."""
    done: str
    """A sentence for afterwards."""
    states: tuple[str, ...] = ()
    """The states of the object in which the page has the button; empty: in all."""
    warning: str = ""
    """A sentence for acts that cannot be undone: their form opens first."""


def get(path: str, **more: Any) -> Http:
    """Return the place of a request that changes nothing."""
    return Http(method="GET", path=path, **more)


def post(path: str, **more: Any) -> Http:
    """Return the place of a request that acts, or makes something."""
    return Http(method="POST", path=path, **more)


def put(path: str, **more: Any) -> Http:
    """Return the place of a request that replaces something."""
    return Http(method="PUT", path=path, **more)


def patch(path: str, **more: Any) -> Http:
    """Return the place of a request that changes a part of something."""
    return Http(method="PATCH", path=path, **more)


def delete(path: str, **more: Any) -> Http:
    """Return the place of a request that removes something."""
    return Http(method="DELETE", path=path, **more)


class FieldKind(StrEnum):
    """How people write a value."""

    TEXT = auto()
    NUMBER = auto()
    DURATION = auto()
    """Text such as ``90s`` or ``1h``; in JSON a number of seconds."""
    TIME = auto()
    """RFC 3339 text."""
    RATE = auto()
    """Text such as ``100/1m``; in JSON an object."""
    CHOICE = auto()
    FLAG = auto()
    LIST = auto()
    """Several texts."""
    JSON = auto()
    """Any JSON value."""
    BYTES = auto()
    OBJECT = auto()
    """An object with fields of its own."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a request, as it is declared."""

    name: str
    key: str
    """That in JSON."""
    kind: FieldKind
    help: str
    """A sentence; empty: no command and no form has the field."""
    names: tuple[str, ...]
    """The options of the command."""
    metavar: str
    label: str
    required: bool
    default: Any
    """None for a required field."""
    choices: tuple[str, ...]
    """The values of a `FieldKind.CHOICE`, or of the entries of a list."""
    is_option: bool
    """Whether commands and forms have it without naming it: see `sizes.about`."""
    takes_number: bool
    """Whether a number is possible beside the choices."""
    number: type[int | float]
    """The type of a `FieldKind.NUMBER`."""
    least: float | None
    """Its smallest value."""
    longest: int | None
    """The most characters of a text."""
    may_be_none: bool
    """Whether null is a value that differs from a field that is left out."""


@cache
def fields_of(kind: type[msgspec.Struct]) -> Mapping[str, Field]:
    """Return the fields of a request by name, without the namespace."""
    return {one.name: _field(one) for one in msgspec.structs.fields(kind) if one.name != "namespace"}


def field_of(kind: type[msgspec.Struct], name: str) -> Field:
    """Return a field of a request. Raises KeyError."""
    return fields_of(kind)[name]


_BY_TYPE: Final[Mapping[Any, FieldKind]] = {
    str: FieldKind.TEXT,
    int: FieldKind.NUMBER,
    float: FieldKind.NUMBER,
    bool: FieldKind.FLAG,
    datetime: FieldKind.TIME,
    bytes: FieldKind.BYTES,
    msgspec.Raw: FieldKind.JSON,
    Any: FieldKind.JSON,
    RateSpec: FieldKind.RATE,
    list: FieldKind.LIST,
    tuple: FieldKind.LIST,
}


def _field(one: msgspec.structs.FieldInfo) -> Field:
    metas = list(_metas(one.type))
    extra: dict[str, Any] = {}
    for meta in reversed(metas):  # the outermost one is the last word
        extra |= meta.extra or {}
    parts = [part for part in _parts(one.type) if part is not type(None) and part is not UnsetType]
    default = one.default if one.default is not NODEFAULT else None
    kind = FieldKind(extra[KIND]) if KIND in extra else _kind(parts)
    if kind is FieldKind.TEXT and "choices" in extra:
        kind = FieldKind.CHOICE
    return Field(
        name=one.name,
        key=one.encode_name,
        kind=kind,
        help=next((meta.description for meta in metas if meta.description), ""),
        names=extra.get("names", ("--" + one.name.rstrip("_").replace("_", "-"),)),
        metavar=extra.get("metavar", ""),
        label=extra.get("label", one.name.rstrip("_").replace("_", " ").capitalize()),
        required=one.required,
        default=default,
        choices=extra.get("choices") or tuple(choice for part in parts for choice in _choices(part)),
        is_option=any(meta.description for meta in metas) and extra.get(IS_OPTION, True),
        takes_number=kind is FieldKind.CHOICE and int in parts,
        number=int if int in parts else float,
        least=next((meta.ge for meta in metas if meta.ge is not None), None),
        longest=next((meta.max_length for meta in metas if meta.max_length is not None), None),
        may_be_none=type(None) in _parts(one.type) and default is not None,
    )


def _kind(parts: list[Any]) -> FieldKind:
    found = {_kind_of(part) for part in parts}
    if FieldKind.LIST in found:  # one text, or several
        return FieldKind.LIST
    if found == {FieldKind.CHOICE, FieldKind.NUMBER}:
        return FieldKind.CHOICE
    return found.pop() if len(found) == 1 else FieldKind.JSON


def _kind_of(part: Any) -> FieldKind:
    origin = get_origin(part) or part
    if origin is Literal:
        return FieldKind.CHOICE
    if isinstance(origin, type) and issubclass(origin, StrEnum):
        return FieldKind.CHOICE
    return _BY_TYPE.get(origin, FieldKind.OBJECT)


def _choices(part: Any) -> tuple[str, ...]:
    if get_origin(part) is Literal:
        return get_args(part)
    if isinstance(part, type) and issubclass(part, StrEnum):
        return tuple(part)
    return tuple(choice for inner in get_args(part) for choice in _choices(_bare(inner)))


def _metas(kind: Any) -> Iterator[Meta]:
    """Yield the descriptions of a type, the outermost first."""
    if get_origin(kind) is Annotated:
        inner, *metas = get_args(kind)
        yield from (meta for meta in reversed(metas) if isinstance(meta, Meta))
        yield from _metas(inner)
    elif get_origin(kind) in (Union, UnionType):
        for part in get_args(kind):
            yield from _metas(part)


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _parts(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the type, each without its limits."""
    kind = _bare(kind)
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return tuple(_bare(part) for part in parts)
