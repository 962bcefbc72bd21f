"""The inputs of a route that differ from its request in some fields, and the request that is made of them."""

from __future__ import annotations

from datetime import datetime
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT
from msgspec.structs import FieldInfo, replace

from mainspring.api.errors import PAGE_LIMIT
from mainspring.api.job_filters import Time
from mainspring.faces.rest import paging
from mainspring.sizes import Text, bare

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mainspring.api.request import Request

LONGEST_WAIT: Final = 60.0
Wait = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT)]
"""Seconds of a long poll."""
Limit = Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)]
"""The most items of a page."""


class Shape:
    """The inputs for a request. The parameters are those of `registry.Route`."""

    def __init__(
        self,
        request: type[Request[Any]],
        *,
        cursor: str = "",
        times: Iterable[str] = (),
        types: Mapping[str, Any],
        fixed: Mapping[str, object],
        names: Mapping[str, str],
        waits: bool = False,
    ) -> None:
        fields = {one.name: one for one in msgspec.structs.fields(request)}
        for name in filter(None, (cursor, *times, *types, *fixed, *names.values())):
            if name not in fields:
                raise ValueError(f"{request.__name__} has no field {name}")
        self._request = request
        self._cursor = cursor
        self._has_number = bool(cursor) and int in map(bare, _parts(fields[cursor].type))
        self._times = tuple(times)
        self._fixed = fixed
        shown = {field: name for name, field in names.items()}
        self._names = {name: shown.get(name, name) for name in fields if name not in fixed and name != cursor}
        """The fields of the request that clients set, with the clients' names for them."""
        self.inputs: type[Any] = request
        """The struct of the inputs."""
        if cursor or times or types or fixed or names or waits:
            self.inputs = struct_of(f"{request.__name__}Inputs", [*self._fields(fields, types, waits=waits)])

    def _fields(self, fields: Mapping[str, FieldInfo], types: Mapping[str, Any], *, waits: bool) -> Iterator[FieldInfo]:
        """Yield the fields of the inputs, in the order of the request; those of each list, or of each long poll, are last."""
        for field, name in self._names.items():
            if self._cursor and field == "limit":
                continue
            kind = types.get(field, fields[field].type)
            one = replace(fields[field], type=_with_times(kind) if field in self._times else kind)
            yield one if name == field else replace(one, name=name, encode_name=name)
        if self._cursor:
            yield _field(paging.FIELD, Text | None, None)
            if "limit" in fields:
                yield _field("limit", Limit, 100)
        if waits:
            yield _field("wait", Wait, 0.0)

    def request_of(self, inputs: Any) -> Request[Any]:
        """Return the request for inputs. Raises HttpError."""
        if self.inputs is self._request:
            request: Request[Any] = inputs
            return request
        values = {field: getattr(inputs, name) for field, name in self._names.items()}
        for name in self._times:
            if isinstance(values[name], datetime):
                values[name] = values[name].timestamp()
        if self._cursor and inputs.cursor is not None:
            values[self._cursor] = paging.number(inputs.cursor) if self._has_number else inputs.cursor
        return self._request(**{**self._fixed, **values})


def struct_of(name: str, fields: Sequence[FieldInfo]) -> Any:
    """Return a struct with these fields."""
    defined: list[Any] = []
    for one in fields:
        if one.default_factory is not NODEFAULT:
            defined.append((one.name, one.type, msgspec.field(default_factory=one.default_factory)))
        elif one.default is not NODEFAULT:
            defined.append((one.name, one.type, one.default))
        else:
            defined.append((one.name, one.type))
    renamed = {one.name: one.encode_name for one in fields if one.encode_name != one.name}
    return msgspec.defstruct(name, defined, kw_only=True, forbid_unknown_fields=True, rename=renamed or None)


def _field(name: str, kind: Any, default: object) -> FieldInfo:
    return FieldInfo(name, name, kind, default)


def _parts(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the type."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _with_times(kind: Any) -> Any:
    """Return a type with times in place of its numbers, which are seconds since 1970."""
    return Union[tuple(Time if bare(part) is float else part for part in _parts(kind))]  # noqa: UP007 - made of a tuple
