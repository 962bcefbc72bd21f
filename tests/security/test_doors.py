"""The matrix of all doors of a node: each kind of request, each role, two namespaces, and grants for some functions.

It is generated from the declarations, so a new door is in it from the start, and one without a declaration fails here or at its
import. The routes of the HTTP API have the same matrix in ``unit/faces/rest/test_permissions.py``.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import contextlib
import json
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring.access.caller import LOCAL, Caller, Grant, Permission, Role, caller_of_port
from mainspring.api.handlers.registry import Api, Call, check_permission
from mainspring.api.jobs import WatchJobs
from mainspring.api.request import Request
from mainspring.errors import ForbiddenError
from mainspring.faces import dashboard
from mainspring.faces.gearman import guard
from mainspring.faces.gearman.administration import COMMANDS, About
from mainspring.faces.gearman.guard import PACKETS, Check
from mainspring.faces.gearman.protocol import MESSAGES, GearmanProtocol
from mainspring.faces.rest.routes import ROUTES
from mainspring.wire import gearman_admin
from mainspring.wire.gearman_protocol import ARGUMENTS, PLAIN, REQUESTS, TEXT, Connection, Type, request
from mainspring.workflows import requests
from mainspring.workflows.model import PART
from mainspring.workflows.requests import DecisionBase
from tests.unit.faces.rest.a_server import whole_node
from tests.unit.wire.test_admin import LINES as LINES_OF_GEARMAND
from tests.unit.wire.test_admin import OUR_LINES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.faces.gearman.face import GearmanFace

OWN, OTHER = "default", "team"
NEEDED = {
    Permission.READ: Role.VIEWER,
    Permission.OPERATE: Role.OPERATOR,
    Permission.DEVELOP: Role.DEVELOPER,
    Permission.ADMIN: Role.ADMIN,
}
ROLES = (*product(Role, (False, True), [()]), (Role.DEVELOPER, True, ("pay*",)), (Role.ADMIN, True, ("pay*",)))
TOKENS = [
    Caller(f"{role.name}{'+payloads' * payloads}{functions}", (Grant(role, OWN, functions, payloads),), token="t")
    for role, payloads, functions in ROLES
]
PORTS = [caller_of_port(OWN, role) for role in Role]
FUNCTIONS = ("pay1", "mail1")


def may(caller: Caller, permission: Permission, namespace: str, function: str | None = None) -> bool:
    """Return what the documentation promises; it is written apart from the code that checks."""
    if caller is LOCAL or permission in {Permission.SIGNED_IN, Permission.BY_TOKEN}:
        return True
    (grant,) = caller.grants
    if grant.namespace != namespace or (grant.functions and function is not None and not function.startswith("pay")):
        return False
    return grant.payloads if permission is Permission.PAYLOADS else grant.role >= NEEDED[permission]


class Wire(asyncio.Transport):
    """A connection to the Gearman port of a node."""

    def __init__(self, face: GearmanFace, caller: Caller, namespace: str) -> None:
        super().__init__()
        self._read = Connection("client")
        self._read.extended = True
        self.lines = b""
        self.packets: list[tuple[int, list[bytes]]] = []
        is_token = bool(caller.token)
        port = None if caller is LOCAL or is_token else namespace
        self.protocol = GearmanProtocol(face, port, LOCAL if is_token else caller)
        self.protocol.connection_made(self)
        if is_token:
            self.protocol.peer.signed_in(caller, lambda: None)
        self.protocol.peer.wire.extended = True
        if port is None:
            self.protocol.peer.use_namespace(namespace)

    def ask(self, data: bytes) -> None:
        self.lines, self.packets = b"", []
        self.protocol.data_received(data)

    def write(self, data: Any) -> None:
        if data[:1] == b"\0":
            self.packets += self._read.receive(bytes(data))
        else:
            self.lines += data

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        del name
        return default

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def end(self) -> None:
        self.protocol.connection_lost(None)


@contextlib.contextmanager
def connected(face: GearmanFace, caller: Caller, namespace: str) -> Iterator[Wire]:
    wire = Wire(face, caller, namespace)
    try:
        yield wire
    finally:
        wire.end()


# ---- examples ----


def value_of(kind: msgspec.inspect.Type, name: str, function: str) -> Any:
    """Return a value of a type, as JSON has it."""
    match kind:
        case msgspec.inspect.StructType():
            return {
                field.encode_name: value_of(field.type, field.name, function) for field in kind.fields if field.required
            }
        case msgspec.inspect.UnionType():
            return value_of(kind.types[0], name, function)
        case msgspec.inspect.LiteralType():
            return kind.values[0]
        case msgspec.inspect.EnumType():
            return next(iter(kind.cls)).value
        case msgspec.inspect.BoolType():
            return False
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return kind.ge or kind.gt or 1
        case msgspec.inspect.DateTimeType():
            return "2030-01-01T00:00:00Z"
        case msgspec.inspect.BytesType():
            return base64.b64encode(function.encode()).decode()
        case msgspec.inspect.DictType():
            return {}
        case msgspec.inspect.TupleType():
            return [value_of(one, name, function) for one in kind.item_types]
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            return [value_of(kind.item_type, name, function)] * (kind.min_length or 0)
        case msgspec.inspect.Metadata():
            return value_of(kind.type, name, function)
        case _:
            return function if name in {"function", "name", "type"} else "x"


def example(kind: type[Request[Any]], function: str) -> dict[str, Any]:
    """Return the fields of a request of a kind, which name a function if it has such a field."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    found: dict[str, Any] = value_of(info, "", function)
    if any(field.name == "function" and isinstance(field.type, msgspec.inspect.StrType) for field in info.fields):
        found["function"] = function
    return found


def is_allowed(kind: type[Request[Any]], request_: Request[Any], caller: Caller, namespace: str) -> bool:
    """Return whether the declaration of a request lets a caller make it, as far as its object does not decide."""
    if kind.in_all_namespaces or (kind.about_nodes and caller.is_port):
        return False
    function = getattr(request_, "function", None)
    if isinstance(function, bytes):
        function = function.decode()
    if kind is WatchJobs and caller.grants[0].functions and function is None:
        return False
    if kind.in_any_namespace and may(caller, kind.permission, OWN):
        return True
    return may(caller, kind.permission, namespace, function if isinstance(function, str) else None)


# ---- the matrix ----


def test_each_call_is_for_the_callers_that_it_declares() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            face = built.node.face
            calls: dict[str, type[Request[Any]]] = dict(face.calls.requests)
            assert set(built.api.requests) < set(calls)
            wrong = []
            for caller, function in product((*TOKENS, *PORTS), FUNCTIONS):
                if function == FUNCTIONS[1] and not caller.grants[0].functions:
                    continue  # without patterns, functions make no difference
                for namespace in (OWN, OTHER):
                    if caller.is_port and namespace != OWN:
                        continue
                    for method, kind in calls.items():
                        params = example(kind, function)
                        request_ = msgspec.convert(params, kind)
                        with connected(face, caller, namespace) as wire:
                            wire.ask(request(Type.CALL, b"1", method.encode(), json.dumps(params).encode()))
                            answered = [(packet, args[1]) for packet, args in wire.packets]
                        refused = (Type.FAULT, b"forbidden") in answered
                        expected = is_allowed(kind, request_, caller, namespace)
                        by_object = expected and caller.grants[0].functions  # it is looked up, and may be refused
                        if refused == expected and not by_object:
                            wrong.append((method, caller.name, namespace, function, answered))
            assert wrong == []

    asyncio.run(test())


def test_each_request_without_a_call_is_for_the_callers_that_it_declares() -> None:
    """Streams, and requests that only routes or packets make."""

    async def test() -> None:
        async with whole_node() as (_, built):
            api = built.api
            others = api.kinds - set(api.requests.values())
            assert others
            for kind, caller, namespace in product(others, TOKENS, (OWN, OTHER)):
                request_ = msgspec.convert(example(kind, "pay1"), kind, strict=False)
                request_.namespace = namespace
                allowed = True
                try:
                    check_permission(kind, namespace, caller, getattr(request_, kind.function_field, None))
                except ForbiddenError:
                    allowed = False
                assert allowed == is_allowed(kind, request_, caller, namespace), (kind, caller.name, namespace)

    asyncio.run(test())


OF_TOKENS = {Type.OPTION_REQ, Type.ECHO_REQ, Type.SET_CLIENT_ID, Type.WORK_STATUS, Type.WORK_DATA, Type.WORK_WARNING}


def is_packet_allowed(kind: int, caller: Caller, namespace: str, function: str) -> bool:
    if caller.token and (kind == TEXT or (kind in PLAIN and kind not in OF_TOKENS)):
        return False
    if PACKETS[kind] is Check.FUNCTION:
        return may(caller, Permission.DEVELOP, namespace, function)
    return PACKETS[kind] is not Check.STATUS or may(caller, Permission.READ, namespace)


def test_each_packet_is_for_the_callers_that_it_declares() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            wrong = []
            kinds = [kind for kind in PACKETS if kind in REQUESTS and kind != Type.CALL]
            for kind, caller, namespace, function in product(kinds, (LOCAL, *TOKENS, *PORTS), (OWN, OTHER), FUNCTIONS):
                if caller.is_port and namespace != OWN:
                    continue
                first = function.encode() if PACKETS[kind] is Check.FUNCTION else b"7"
                args = [first, *[b""] * (ARGUMENTS[kind] - 1)][: ARGUMENTS[kind]]
                with connected(built.node.face, caller, namespace) as wire:
                    wire.ask(request(kind, *args))
                    refused = any(args[:1] == [b"NOT_PERMITTED"] for _, args in wire.packets)
                if refused == is_packet_allowed(kind, caller, namespace, function):
                    wrong.append((Type(kind).name, caller.name, namespace, function, wire.packets))
            assert wrong == []

    asyncio.run(test())


LINES = {
    "cancel job": "cancel job H:n:1",
    "create function": "create function {}",
    "drop function": "drop function {}",
    "maxqueue": "maxqueue {} 1",
}


def test_each_text_command_is_for_the_callers_that_it_declares() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            face = built.node.face
            face.shut_down = lambda _: None
            for (name, command), caller, function in product(COMMANDS.items(), (LOCAL, *TOKENS, *PORTS), FUNCTIONS):
                line = LINES.get(name, name).format(function)
                parsed = gearman_admin.parse(line.encode())
                assert isinstance(parsed, gearman_admin.Command)
                assert parsed.name == name
                with connected(face, caller, OWN) as wire:
                    wire.ask(line.encode() + b"\n")
                    refused = wire.lines.startswith(b"ERR NOT_PERMITTED")
                everywhere = caller is LOCAL or command.about is not About.NODE
                allowed = not caller.token and everywhere and may(caller, command.permission, OWN, function)
                assert refused != allowed, (line, caller.name, wire.lines)

    asyncio.run(test())


def example_of(kind: type[DecisionBase], function: str) -> tuple[Any, set[str]]:
    """Return a command, and the functions that it needs beside its own workflow."""
    part = PART + msgspec.msgpack.encode((requests.ScheduleActivityTask(1, "1", function.encode()), "try", 1, []))
    fields = msgspec.structs.fields(kind)
    values = {field.name: field.type() for field in fields if field.required}
    needed: set[str] = set()
    for name, value in (("function", function.encode()), ("type", function)):
        if kind is not requests.RecordMarker and any(field.name == name for field in fields):
            values[name] = value
            needed.add(function)
    if kind in (requests.StartChildWorkflowExecution, requests.ContinueAsNewWorkflowExecution):
        values["input"] = part
        needed.add(function)
    return kind(**values), needed


def test_each_command_in_a_decision_is_for_the_callers_that_it_declares() -> None:
    limited = set()
    for kind, caller, namespace, function in product(guard.COMMANDS, TOKENS, (OWN, OTHER), FUNCTIONS):
        command, needed = example_of(kind, function)
        allowed = all(may(caller, Permission.DEVELOP, namespace, one) for one in needed)
        assert bool(guard.command_refusal([command], caller, namespace)) != allowed, (command, caller.name, namespace)
        limited |= {kind for one in guard.limited_to([command], ("pay*",)) if getattr(one, "reach", ()) == ("pay*",)}
    assert limited == {
        kind
        for kind in guard.COMMANDS
        if {"workflow_id", "run"} <= {field.name for field in msgspec.structs.fields(kind)}
    }, "each command that names another run"


# ---- no door without a declaration ----


def test_a_request_without_a_permission_is_no_request() -> None:
    class Undeclared(Request[None]):
        call = "undeclared"

    async def answer(_: Undeclared, __: Call) -> None: ...

    with pytest.raises((AssertionError, AttributeError)):
        Api({Undeclared: answer})


def test_each_door_has_a_declaration() -> None:
    assert PACKETS.keys() == MESSAGES
    assert {kind for kind in PACKETS if kind >= 0} == REQUESTS
    assert guard.COMMANDS.keys() == set(DecisionBase.__subclasses__())
    assert COMMANDS.keys() == {
        parsed.name for _, parsed in (*LINES_OF_GEARMAND, *OUR_LINES) if isinstance(parsed, gearman_admin.Command)
    }

    async def test() -> None:
        async with whole_node() as (_, built):
            assert {route.request for route in ROUTES} <= built.api.kinds
            port = GearmanProtocol(built.node.face)
            assert (port.peer.caller, port.peer.guard) == (LOCAL, None), "the check costs nothing there"
            for kind in built.api.kinds:
                assert isinstance(kind.permission, Permission), kind

    asyncio.run(test())


def test_pages_have_no_way_in_beside_the_api() -> None:
    """They get nothing that answers but the application of the HTTP API, which checks each of their calls."""
    assert dashboard.__file__ is not None
    found = set()
    for path in Path(dashboard.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mainspring."):
                found.add((node.module or "").removeprefix("mainspring."))
    services = {
        name for name in found if name.endswith("service") or name.startswith(("server", "engines", "api.answers"))
    }
    assert services == set()
