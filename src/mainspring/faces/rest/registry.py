"""The routes of the HTTP API: a method and a path, the request of the API behind them, and what goes in and out.

Most are declared in their requests; `routes` has all of them. Everything else is derived from them: the table by which the
application finds a route, the readers of its inputs (`Inputs`: from the path, the query and the body), and OpenAPI.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlencode

import msgspec
from msgspec import NODEFAULT, inspect
from msgspec.structs import FieldInfo

from mainspring.access.proxy import SAFE
from mainspring.faces.rest.replies import HttpError, fault_of
from mainspring.faces.web.exchange import PARAMETER, Fault, N
from mainspring.sizes import about

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from mainspring.access.caller import Caller, Permission
    from mainspring.api.handlers.registry import Api
    from mainspring.api.request import Page, Request
    from mainspring.faces.rest.replies import Encoded


CURSOR: Final = "cursor"


def link(page: Page[Any], path: str, query: bytes) -> str | None:
    """Return the value of ``Link`` for the next page; None if there is none."""
    if page.next is None:
        return None
    pairs = [pair for pair in parse_qsl(query.decode("ascii"), keep_blank_values=True) if pair[0] != CURSOR]
    return f'<{path}?{urlencode([*pairs, (CURSOR, page.next)])}>; rel="next"'


LONGEST_WAIT: Final = 60.0
Wait = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT), about("Seconds to wait.")]


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


Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
PREFER: Final = b"prefer"
"""The header by which a client waits for the end of its job."""
BODY_LIMIT: Final = 1 << 20
"""Bytes of a request's body, unless its route has a limit of its own."""


def path_in(namespace: str, *segments: str) -> str:
    """Return the path of an object in a namespace, for ``Location``: ``path_in("default", "jobs", handle)``."""
    return "/".join([N.format(namespace=namespace), *(quote(segment, safe=":") for segment in segments)])


class WaitTimes:
    """The times for which clients want to wait for the end of a job. All of them are over when the node stops."""

    def __init__(self) -> None:
        self._running: set[asyncio.Timeout] = set()
        self._is_over = False

    @contextlib.asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """Raise TimeoutError if the block takes longer than this time, or if the node stops."""
        async with asyncio.timeout(0 if self._is_over else seconds) as limit:
            self._running.add(limit)
            try:
                yield
            finally:
                self._running.remove(limit)

    def end(self) -> None:
        """End all waits, and those that begin later."""
        self._is_over = True
        now = asyncio.get_running_loop().time()
        for limit in self._running:
            if not limit.expired():
                limit.reschedule(now)


class Context(NamedTuple):
    """All that the handler of a route gets."""

    api: Api
    caller: Caller
    inputs: Any
    """The struct ``inputs`` of the route."""
    headers: Mapping[bytes, bytes]
    waits: WaitTimes


@dataclass(frozen=True, kw_only=True)
class Route:
    """One method of one path.

    Each field of ``inputs`` comes from one place: from the path, if it has a parameter of this name; else from the body, if the
    method is POST, PUT or PATCH; else from the query.
    """

    method: Method
    path: str
    request: type[Request[Any]]
    """The request of the API. It has the permission that the caller needs."""
    answer: Any
    """The type of the JSON answer; None for an answer without a body, bytes for `Raw`."""
    summary: str
    """One line for the documentation."""
    waits: bool = False
    """Whether clients may send ``wait``: seconds of a long poll."""
    inputs: type[Any] | None = None
    """A struct with everything that the client sends; by default ``request``, with ``wait`` if it waits."""
    make: Callable[[Any], Request[Any]] | None = None
    """Returns the request for ``inputs``. It may raise ApiError."""
    reply: Callable[[Any, Any], Any] | None = None
    """Returns the value of the answer, or a `Reply`, for the answer of the API and the inputs; by default that answer."""
    handler: Callable[[Context], Awaitable[Any]] | None = None
    """Replaces ``make``, the call of the API, and ``reply``: for routes that are more than one call."""
    then: Callable[[Context, Encoded], Awaitable[Encoded]] | None = None
    """Completes the answer to a request with ``Prefer``, or the kept one to a key that was used before. Nothing of it is kept."""
    body: str = ""
    """The field of ``inputs`` that the whole body is; by default the body is an object with one key for each field."""
    stream: bool = False
    """Whether the answer is a stream of server-sent events, from the handler of the request in `Api.streams`."""
    follows: Callable[[Any], Sequence[Request[Any]]] | None = None
    """Returns the requests for several streams, which the route sends as one, each with its permission. It may raise ApiError."""
    resume: str = ""
    """The field of ``inputs`` that gets the header ``Last-Event-ID``, with which the client of a stream continues."""
    watch: Callable[[Any], Request[Any]] | None = None
    """Returns the request for the stream whose events end the wait of a long poll: a request with ``If-None-Match`` waits for
    another answer."""
    version: Callable[[Any], object] | None = None
    """Returns the version of the answer's value for ``ETag``; by default it is a digest of the answer."""
    if_match: str = ""
    """The field of ``inputs`` for the version in ``If-Match``, which the route then requires: a text, or None for any."""
    status: int = 200
    """The status of a successful answer."""
    others: Mapping[int, str] = field(default_factory=dict)
    """Other statuses of successful answers, with their descriptions."""
    problems: tuple[str, ...] = ()
    """The names of its own `replies.PROBLEM_TYPES`; all routes have those of authentication and of invalid values."""
    shows_secret: bool = False
    """Whether its answer has a secret. The node keeps no such answer, so the route takes no ``Idempotency-Key``."""
    limit: int = BODY_LIMIT
    """Bytes of the body."""
    lines: Any = None
    """The type of an item, if the body may be NDJSON in place of an array: one item a line."""
    example: object = None
    """A body of the request, or None."""
    answered: object = None
    """The answer to the example, or None."""
    name: str = ""
    """The ``operationId``; by default the name of the call, such as ``jobs_show``."""

    @property
    def operation(self) -> str:
        """The unique name of the route."""
        return self.name or self.request.call.replace(".", "_")

    @property
    def permission(self) -> Permission:
        """The need of the caller."""
        return self.request.permission

    @cached_property
    def takes(self) -> type[Any]:
        """The struct of its inputs."""
        if self.inputs is not None:
            return self.inputs
        if not self.waits:
            return self.request
        wait = FieldInfo("wait", "wait", Wait, 0.0)
        kind: type[Any] = struct_of(f"{self.request.__name__}Inputs", [*msgspec.structs.fields(self.request), wait])
        return kind

    def request_of(self, inputs: Any) -> Request[Any]:
        """Return the request for inputs. Raises ApiError."""
        if self.make is not None:
            return self.make(inputs)
        if self.takes is not self.request:
            inputs = self.request(**{name: getattr(inputs, name) for name in self.request.__struct_fields__})
        request: Request[Any] = inputs
        return request

    def value_of(self, answer: Any, inputs: Any) -> Any:
        """Return the value to send, or a `Reply`, for the answer of the API and the inputs."""
        if self.reply is not None:
            return self.reply(answer, inputs)
        return None if self.answer is None else answer

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters in the path."""
        return tuple(PARAMETER.findall(self.path))

    @property
    def has_body(self) -> bool:
        """Whether its method has a body."""
        return self.method in {"POST", "PUT", "PATCH"}

    @property
    def changes(self) -> bool:
        """Whether it may change something."""
        return self.method not in SAFE


class _Place:
    """A part of the table: the routes of one path, and the parts of the paths that are longer by one segment."""

    __slots__ = ("fixed", "free", "methods")

    def __init__(self) -> None:
        self.fixed: dict[str, _Place] = {}
        self.free: _Place | None = None
        self.methods: dict[str, Any] = {}

    def walk(self) -> Iterator[_Place]:
        yield self
        for place in (*self.fixed.values(), *([self.free] if self.free is not None else [])):
            yield from place.walk()


class Table:
    """Finds the route for a method and a path. ``compile_route`` makes of each route the object that `find` returns."""

    def __init__(self, routes: Iterable[Route], compile_route: Callable[[Route], Any]) -> None:
        self._root = _Place()
        self.routes = tuple(routes)
        names: set[str] = set()
        for route in self.routes:
            if not route.operation or route.operation in names:
                raise ValueError(f"{route.method} {route.path} needs a name of its own: {route.operation!r} is taken")
            names.add(route.operation)
            if not hasattr(route.request, "permission"):
                raise ValueError(f"{route.method} {route.path} declares no permission: set it in its request")
            methods = self._place(route.path).methods
            if route.method in methods:
                raise ValueError(f"two routes are {route.method} {route.path}")
            methods[route.method] = compile_route(route)
            if route.method == "GET":
                methods["HEAD"] = methods["GET"]

    def _place(self, path: str) -> _Place:
        place = self._root
        for segment in path.split("/")[1:]:
            if not PARAMETER.fullmatch(segment):
                place = place.fixed.setdefault(segment, _Place())
                continue
            if place.free is None:
                place.free = _Place()
            place = place.free
        return place

    def find(self, method: str, raw_path: str) -> tuple[Any, list[str]]:
        """Return the compiled route and the values of its path's parameters. Raises HttpError.

        The path is cut before it is decoded, so that names may contain slashes. A fixed segment precedes a parameter.
        """
        place, values = self._root, []
        for segment in raw_path.split("/")[1:]:
            following = place.fixed.get(segment)
            if following is None:
                following = place.free
                if following is None or not segment:
                    raise _not_found(raw_path)
                values.append(_decoded(segment) if "%" in segment else segment)
            place = following
        found = place.methods.get(method)
        if found is None:
            if not place.methods:
                raise _not_found(raw_path)
            allowed = ", ".join(sorted(place.methods))
            raise HttpError(
                "method_not_allowed", f"this path has {allowed}, not {method}", headers={b"allow": allowed.encode()}
            )
        return found, values


def _decoded(segment: str) -> str:
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise HttpError("malformed", "the path contains escapes that are not UTF-8") from None


def _not_found(raw_path: str) -> HttpError:
    return HttpError("path_not_found", f"there is no path {raw_path[:200]}: /api/v1/openapi.json lists all paths")


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
