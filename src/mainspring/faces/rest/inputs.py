"""Reads the inputs of a route from the path, the query and the body of a request."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

import msgspec
from msgspec import inspect

from mainspring.faces.rest.registry import struct_of
from mainspring.faces.rest.replies import HttpError, fault_of
from mainspring.faces.web.exchange import Fault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.faces.rest.registry import Route

JSON: Final = b"application/json"
NDJSON: Final = b"application/x-ndjson"
MAX_FIELDS: Final = 200
"""Fields in a query."""
_LISTS: Final = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)


class Inputs:
    """The reader of one route's inputs. The struct ``of_path``, ``of_query`` and ``of_body`` have the fields of each place."""

    def __init__(self, route: Route) -> None:
        self._type = route.takes
        self._names = route.parameters
        fields = {one.name: one for one in msgspec.structs.fields(self._type)}
        missing = [name for name in self._names if name not in fields]
        if missing:
            raise ValueError(f"{route.method} {route.path}: {self._type.__name__} has no field {missing[0]}")
        rest = [name for name in fields if name not in self._names and name not in (*HIDDEN, route.if_match)]
        in_query = [name for name in rest if not route.has_body]
        in_body = [name for name in rest if name not in in_query]
        title = "".join(part.capitalize() for part in route.operation.split("_"))
        self.of_path = struct_of(f"{title}Path", [fields[name] for name in self._names])
        self.of_query = struct_of(f"{title}Query", [fields[name] for name in in_query])
        self.of_body: Any = None
        self._whole = route.body
        if route.body:
            self.of_body = fields[route.body].type
        elif in_body:
            self.of_body = struct_of(f"{title}Body", [fields[name] for name in in_body])
        self._most_text = _most_text(fields[name].type for name in self._names)
        self._lists = {name for name in in_query if is_list(fields[name].type)}
        self._floats = {name for name in in_query if _is_one_of(fields[name].type, inspect.FloatType)}
        self._has_query = bool(in_query)
        self._body = None if self.of_body is None else msgspec.json.Decoder(self.of_body)
        self._line = None if route.lines is None else msgspec.json.Decoder(route.lines)
        self.needs_body = bool(route.body) or any(fields[name].required for name in in_body)

    @property
    def takes_body(self) -> bool:
        """Whether the route has a body."""
        return self._body is not None

    def read(self, values: list[str], query: bytes, body: bytes, *, lines: bool = False) -> Any:
        """Return the inputs; ``lines``: the body is NDJSON. Raises HttpError for inputs that the types do not allow."""
        given: dict[str, Any] = dict(zip(self._names, values, strict=True))
        if sum(map(len, values)) > self._most_text:
            given = self._converted(given, self.of_path)
        if query:
            given |= self._converted(self._of_query(query), self.of_query)
        elif self._has_query:
            given |= self._converted({}, self.of_query)
        if self._body is not None and (body or self.needs_body):
            decoded = self._decoded(body, lines=lines)
            given |= {self._whole: decoded} if self._whole else msgspec.structs.asdict(decoded)
        return self._type(**given)

    def _decoded(self, body: bytes, *, lines: bool) -> Any:
        assert self._body is not None
        try:
            if lines:
                assert self._line is not None
                return msgspec.convert(self._line.decode_lines(body), self.of_body)
            return self._body.decode(body)
        except msgspec.ValidationError as error:
            fault = fault_of(error)
            raise HttpError("invalid", f"the body is invalid: {fault.message}", faults=[fault]) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HttpError("malformed", f"the body is no JSON: {error}") from None

    def _of_query(self, query: bytes) -> dict[str, Any]:
        try:
            pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
        except ValueError as error:
            raise HttpError("malformed", f"the query cannot be read: {error}") from None
        given: dict[str, Any] = {}
        for name, value in pairs:
            if name in self._lists:
                given.setdefault(name, []).append(value)
            elif name in given:
                raise _invalid(name, f"{name} is given twice: give it once")
            elif name in self._floats and not _is_finite(value):
                raise _invalid(name, f"{name} is no number: {value[:40]!r}")
            else:
                given[name] = value
        return given

    @staticmethod
    def _converted(given: dict[str, Any], part: Any) -> dict[str, Any]:
        try:
            return msgspec.structs.asdict(msgspec.convert(given, part, strict=False))
        except msgspec.ValidationError as error:
            fault = fault_of(error)
            name = (fault.pointer or "/").split("/")[1]
            raise _invalid(name, fault.message) from None


HIDDEN: Final = frozenset({"namespace"})
"""Fields that only a path can set: a namespace has one spelling."""


def _most_text(kinds: Iterable[Any]) -> int:
    """Return the characters up to which values of all these types together are valid as they are; -1 if they may not be."""
    most = sys.maxsize
    for found in map(_bare_info, kinds):
        if not isinstance(found, inspect.StrType) or found.min_length is not None or found.pattern is not None:
            return -1
        most = most if found.max_length is None else min(most, found.max_length)
    return most


def _bare_info(kind: Any) -> Any:
    """Return what a type is, without the descriptions of its declaration."""
    found = kind if isinstance(kind, inspect.Type) else inspect.type_info(kind)
    return _bare_info(found.type) if isinstance(found, inspect.Metadata) else found


def is_list(kind: Any) -> bool:
    """Return whether a value, or one in a union, is a list: a query may give the parameter several times."""
    return _is_one_of(kind, *_LISTS)


def _is_one_of(kind: Any, *types: type[inspect.Type]) -> bool:
    """Return whether a type, or one in a union, is one of these."""
    found = _bare_info(kind)
    return any(
        isinstance(_bare_info(one), types) for one in (found.types if isinstance(found, inspect.UnionType) else [found])
    )


def _is_finite(value: str) -> bool:
    try:
        return math.isfinite(float(value))
    except ValueError:
        return True  # the decoder reports the type


def _invalid(name: str, message: str) -> HttpError:
    return HttpError("invalid", f"the parameter {name} is invalid: {message}", faults=[Fault(message, parameter=name)])
