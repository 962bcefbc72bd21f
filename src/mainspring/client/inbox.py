"""Submits and signals to runs in transactions of users.

Both are functions of the store's schema, called over a connection of the caller. Their effects exist if and only if the caller's
transaction commits.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mainspring.client.options import check_text
from mainspring.errors import UsageError
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.client.options import Options
    from mainspring.client.session import Request

DEFAULT_SCHEMA: Final = "mainspring"

_PRIORITIES: Final = {None: 1, "high": 0, "normal": 1, "low": 2}


class _Function(NamedTuple):
    """A function of the schema."""

    name: str
    arguments: dict[str, str]
    """The names of its arguments with their types, in their order; calls may leave out the last ones."""

    def call(self, schema: str, marks: list[str]) -> str:
        """Return the statement with these marks for the arguments."""
        kinds = self.arguments.values()
        arguments = ", ".join(f"CAST({mark} AS {kind})" for mark, kind in zip(marks, kinds, strict=False))
        return f"SELECT {schema}.{self.name}({arguments})"


_SUBMIT: Final = _Function(
    "submit",
    {
        "function": "bytea",
        "payload": "bytea",
        "uniq": "bytea",
        "priority": "int",
        "delay": "float8",
        "run_at": "float8",
        "expires": "float8",
        "options": "bytea",
        "namespace": "text",
    },
)
_SIGNAL: Final = _Function(
    "signal", {"run": "text", "name": "text", "input": "bytea", "request": "text", "namespace": "text"}
)


class Inbox:
    """The functions of a store, called over a connection of the caller, of any supported library.

    Raises UsageError if the connection's library is not supported.
    """

    def __init__(self, connection: Any, schema: str = DEFAULT_SCHEMA) -> None:
        check_text(schema, "schema")
        if not schema.replace("_", "a").isalnum() or not schema.isascii():
            raise UsageError(f"{schema!r} is not the name of a schema: use letters, digits and '_'")
        self._connection = connection
        self._schema = schema
        sender = _sender(connection)
        if sender is None:
            raise UsageError(
                f"connection is a {type(connection).__module__}.{type(connection).__qualname__}: give a connection of asyncpg, "
                "psycopg or Django, or a connection or session of SQLAlchemy"
            )
        self._send, self.asynchronous = sender

    def __repr__(self) -> str:
        return f"<{type(self._connection).__module__}.{type(self._connection).__qualname__}>"

    def submit(self, request: Request, options: Options, namespace: str) -> str:
        """Add a job of a namespace and return its handle."""
        self._check_blocking("submit")
        handle: str = self._send(self._connection, self._schema, _SUBMIT, _values(request, options, namespace))
        return handle

    async def asubmit(self, request: Request, options: Options, namespace: str) -> str:
        """Add a job of a namespace and return its handle; accepts connections of both kinds, and blocks with a blocking one."""
        answer: Any = self._send(self._connection, self._schema, _SUBMIT, _values(request, options, namespace))
        handle: str = await answer if inspect.isawaitable(answer) else answer
        return handle

    def signal(self, key: str, name: str, value: bytes, request: str | None, namespace: str) -> None:
        """Add a signal to a run of a namespace, which has a handle or a workflow id as its key."""
        self._check_blocking("signal")
        self._send(self._connection, self._schema, _SIGNAL, (key, name, value, request or "", namespace))

    async def asignal(self, key: str, name: str, value: bytes, request: str | None, namespace: str) -> None:
        """Add a signal, like ``signal``; accepts connections of both kinds, and blocks with a blocking one."""
        answer: Any = self._send(self._connection, self._schema, _SIGNAL, (key, name, value, request or "", namespace))
        if inspect.isawaitable(answer):
            await answer

    def _check_blocking(self, method: str) -> None:
        if self.asynchronous:
            raise UsageError(f"this connection is asynchronous: await a{method}(…) instead of {method}(…)")


def inbox_of(connection: Any, schema: str) -> Inbox | None:
    """Return the inbox for the options ``connection`` and ``schema``; None without a connection. Raises UsageError."""
    if connection is None and schema != DEFAULT_SCHEMA:
        raise UsageError("schema needs a connection to submit or signal with: give connection= too")
    return None if connection is None else Inbox(connection, schema)


def _values(request: Request, options: Options, namespace: str) -> tuple[Any, ...]:
    """Return the arguments of ``submit``, in their order.

    The namespace is left out if it is the default one: nodes of older versions have made the schema without that argument.
    """
    kept: dict[str, Any] = {
        name: value
        for name in ("timeout", "heartbeat", "keep_unique", "version")
        if (value := getattr(options, name)) is not None
    }
    if options.tags:
        kept["tags"] = options.tags
    if options.retry is not None:
        kept["retry"] = options.retry.wire()
    # The key may be computed from the arguments, so only the request has it.
    key = msgspec.json.decode(request.options).get("concurrency_key") if request.options else None
    if key:
        kept["key"] = key.encode()
    return (
        request.function,
        request.payload,
        request.unique,
        _PRIORITIES[options.priority],
        options.delay,
        options.run_at,
        options.expires,
        msgspec.msgpack.encode(kept) if kept else None,
        *(() if namespace == DEFAULT else (namespace,)),
    )


# ---- the libraries ----


def _asyncpg(connection: Any, schema: str, function: _Function, values: tuple[Any, ...]) -> Any:
    return connection.fetchval(function.call(schema, [f"${number}" for number in range(1, len(values) + 1)]), *values)


def _cursor(connection: Any, schema: str, function: _Function, values: tuple[Any, ...]) -> Any:
    """Call a function on a connection of psycopg 2 or 3, or of Django."""
    with connection.cursor() as cursor:
        cursor.execute(function.call(schema, ["%s"] * len(values)), values)
        return cursor.fetchone()[0]


async def _async_cursor(connection: Any, schema: str, function: _Function, values: tuple[Any, ...]) -> Any:
    async with connection.cursor() as cursor:
        await cursor.execute(function.call(schema, ["%s"] * len(values)), values)
        return (await cursor.fetchone())[0]


def _sqlalchemy_call(schema: str, function: _Function, values: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
    from sqlalchemy import text  # noqa: PLC0415 - the caller has imported it, for the connection

    named = dict(zip(function.arguments, values, strict=False))
    return text(function.call(schema, [f":{name}" for name in named])), named


def _sqlalchemy(connection: Any, schema: str, function: _Function, values: tuple[Any, ...]) -> Any:
    return connection.execute(*_sqlalchemy_call(schema, function, values)).scalar_one()


async def _sqlalchemy_async(connection: Any, schema: str, function: _Function, values: tuple[Any, ...]) -> Any:
    return (await connection.execute(*_sqlalchemy_call(schema, function, values))).scalar_one()


def _sender(connection: Any) -> tuple[Callable[[Any, str, _Function, tuple[Any, ...]], Any], bool] | None:
    """Return what calls a function on a connection, and whether its result must be awaited."""
    # Users derive their own classes from those of the libraries, so this checks all bases.
    origins = {f"{base.__module__.partition('.')[0]}.{base.__qualname__}" for base in type(connection).__mro__}
    if any(origin.startswith("asyncpg.") for origin in origins):
        return _asyncpg, True
    if "psycopg.AsyncConnection" in origins:
        return _async_cursor, True
    if "sqlalchemy.AsyncSession" in origins or "sqlalchemy.AsyncConnection" in origins:
        return _sqlalchemy_async, True
    if "sqlalchemy.Session" in origins or "sqlalchemy.Connection" in origins or "sqlalchemy.scoped_session" in origins:
        return _sqlalchemy, False
    if any(origin.startswith(("psycopg.", "psycopg2.", "django.", "psycopg2cffi.")) for origin in origins):
        return _cursor, False
    return None
