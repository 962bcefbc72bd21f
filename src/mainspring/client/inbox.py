"""Submits, signals to runs, and records of local steps in transactions of users.

All are functions of the store's schema, called over a connection of the caller. Their effects exist if and only if the caller's
transaction commits.
"""

from __future__ import annotations

import inspect
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mainspring.client.inside import current_depth
from mainspring.client.options import check_text
from mainspring.errors import UsageError
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.client.options import Options
    from mainspring.client.session import Request

DEFAULT_SCHEMA: Final = "mainspring"

_PRIORITIES: Final = {None: 1, "high": 0, "normal": 1, "low": 2}


class StoreFunction(NamedTuple):
    """A function of the schema."""

    name: str
    arguments: dict[str, str]
    """The names of its arguments with their types, in their order; calls may leave out the last ones."""

    def call(self, schema: str, marks: list[str]) -> str:
        """Return the statement with these marks for the arguments. It has one row."""
        kinds = self.arguments.values()
        arguments = ", ".join(f"CAST({mark} AS {kind})" for mark, kind in zip(marks, kinds, strict=False))
        return f"SELECT * FROM {schema}.{self.name}({arguments})"  # noqa: S608 - a checked schema, and marks


_SUBMIT: Final = StoreFunction(
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
_SIGNAL: Final = StoreFunction(
    "signal", {"run": "text", "name": "text", "input": "bytea", "request": "text", "namespace": "text"}
)
_STEP: Final = {"run": "text", "step": "int", "key": "bytea"}
RECORDED_STEP: Final = StoreFunction("recorded_step", _STEP)
RECORD_STEP: Final = StoreFunction(
    "record_step", {**_STEP, "begun": "text", "call": "bytea", "failed": "boolean", "result": "bytea"}
)


class Inbox:
    """The functions of a store, called over a connection of the caller, of any supported library.

    Raises UsageError if the connection's library is not supported.
    """

    def __init__(self, connection: Any, schema: str = DEFAULT_SCHEMA) -> None:
        self._connection = connection
        self._schema = check_schema(schema)
        library = _library(connection)
        if library is None:
            raise UsageError(
                f"connection is a {type(connection).__module__}.{type(connection).__qualname__}: give a connection of asyncpg, "
                "psycopg or Django, or a connection or session of SQLAlchemy"
            )
        self._library = library
        self.asynchronous = library.asynchronous

    def __repr__(self) -> str:
        return f"<{type(self._connection).__module__}.{type(self._connection).__qualname__}>"

    def submit(self, request: Request, options: Options, namespace: str) -> str:
        """Add a job of a namespace and return its handle."""
        self._check_blocking("submit")
        (handle,) = self.call(_SUBMIT, _values(request, options, namespace))
        return str(handle)

    async def asubmit(self, request: Request, options: Options, namespace: str) -> str:
        """Add a job of a namespace and return its handle; accepts connections of both kinds, and blocks with a blocking one."""
        answer = self.call(_SUBMIT, _values(request, options, namespace))
        (handle,) = await answer if inspect.isawaitable(answer) else answer
        return str(handle)

    def signal(self, key: str, name: str, value: bytes, request: str | None, namespace: str) -> None:
        """Add a signal to a run of a namespace, which has a handle or a workflow id as its key."""
        self._check_blocking("signal")
        self.call(_SIGNAL, (key, name, value, request or "", namespace))

    async def asignal(self, key: str, name: str, value: bytes, request: str | None, namespace: str) -> None:
        """Add a signal, like ``signal``; accepts connections of both kinds, and blocks with a blocking one."""
        answer = self.call(_SIGNAL, (key, name, value, request or "", namespace))
        if inspect.isawaitable(answer):
            await answer

    def call(self, function: StoreFunction, values: tuple[Any, ...]) -> Any:
        """Call a function with its first arguments. Returns the row of its results; an asynchronous connection's is awaitable."""
        return self._library.call(self._connection, self._schema, function, values)

    def transaction(self) -> Any:
        """Return a context manager that begins a transaction on the connection and commits it, or rolls it back after an error.

        Raises UsageError if a transaction has begun: somebody else would have to commit it.
        """
        library, connection = self._library, self._connection
        if library.begin is None:
            raise UsageError(
                f"{self!r} begins no transactions for steps: give a connection of asyncpg, psycopg, SQLAlchemy or Django"
            )
        if library.has_begun(connection):
            raise UsageError(
                f"{self!r} has begun a transaction already: give what opens a connection, and the step begins its own"
            )
        return library.begin(connection)

    def flush(self) -> Any:
        """Send the changes of a session of SQLAlchemy that it has not sent yet; an asynchronous one's are to be awaited."""
        return self._library.flush(self._connection)

    def is_closed(self) -> bool:
        """Return whether the connection has ended, as far as its library knows."""
        return bool(self._library.is_closed(self._connection))

    def _check_blocking(self, method: str) -> None:
        if self.asynchronous:
            raise UsageError(f"this connection is asynchronous: await a{method}(…) instead of {method}(…)")


def check_schema(schema: str) -> str:
    """Return the name of a schema. Raises UsageError for one that would have to be quoted."""
    check_text(schema, "schema")
    if not schema.replace("_", "a").isalnum() or not schema.isascii():
        raise UsageError(f"{schema!r} is not the name of a schema: use letters, digits and '_'")
    return schema


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
        for name in ("timeout", "heartbeat", "keep_unique", "version", "start_within", "deadline")
        if (value := getattr(options, name)) is not None
    }
    if options.tags:
        kept["tags"] = options.tags
    if options.retry is not None:
        kept["retry"] = options.retry.wire()
    # The key may be computed from the arguments: only the request has it.
    given = msgspec.json.decode(request.options) if request.options else {}
    if key := given.get("concurrency_key"):
        kept["key"] = key.encode()
    if depth := current_depth():
        kept["depth"] = depth
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


class _Library(NamedTuple):
    """The ways to use a connection of a library."""

    call: Callable[[Any, str, StoreFunction, tuple[Any, ...]], Any]
    """Calls a function of a schema; returns a row, or what has to be awaited for it."""
    asynchronous: bool
    begin: Callable[[Any], Any] | None
    """Returns the context manager of a transaction."""
    has_begun: Callable[[Any], bool]
    is_closed: Callable[[Any], bool] = attrgetter("closed")
    flush: Callable[[Any], Any] = lambda _: None


def _asyncpg(connection: Any, schema: str, function: StoreFunction, values: tuple[Any, ...]) -> Any:
    return connection.fetchrow(function.call(schema, [f"${number}" for number in range(1, len(values) + 1)]), *values)


def _cursor(connection: Any, schema: str, function: StoreFunction, values: tuple[Any, ...]) -> Any:
    """Call a function on a connection of psycopg 2 or 3, or of Django."""
    with connection.cursor() as cursor:
        cursor.execute(function.call(schema, ["%s"] * len(values)), values)
        return cursor.fetchone()


async def _async_cursor(connection: Any, schema: str, function: StoreFunction, values: tuple[Any, ...]) -> Any:
    async with connection.cursor() as cursor:
        await cursor.execute(function.call(schema, ["%s"] * len(values)), values)
        return await cursor.fetchone()


def _sqlalchemy_call(schema: str, function: StoreFunction, values: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
    from sqlalchemy import text  # noqa: PLC0415 - the caller has imported it, for the connection

    named = dict(zip(function.arguments, values, strict=False))
    return text(function.call(schema, [f":{name}" for name in named])), named


def _sqlalchemy(connection: Any, schema: str, function: StoreFunction, values: tuple[Any, ...]) -> Any:
    return connection.execute(*_sqlalchemy_call(schema, function, values)).one()


async def _sqlalchemy_async(connection: Any, schema: str, function: StoreFunction, values: tuple[Any, ...]) -> Any:
    return (await connection.execute(*_sqlalchemy_call(schema, function, values))).one()


def _atomic(connection: Any) -> Any:
    from django.db import transaction  # noqa: PLC0415 - as above

    return transaction.atomic(using=connection.alias)


def _flush(connection: Any) -> Any:
    return connection.flush() if hasattr(connection, "flush") else None  # a Connection has nothing to flush


_SQLALCHEMY: Final[dict[str, Any]] = {
    "begin": methodcaller("begin"),
    "has_begun": methodcaller("in_transaction"),
    "is_closed": lambda _: False,  # its errors say that
    "flush": _flush,
}
_PSYCOPG: Final[dict[str, Any]] = {
    "begin": methodcaller("transaction"),
    "has_begun": lambda connection: bool(connection.info.transaction_status),
}
_LIBRARIES: Final = (
    (
        ("asyncpg.",),
        _Library(
            _asyncpg, True, methodcaller("transaction"), methodcaller("is_in_transaction"), methodcaller("is_closed")
        ),
    ),
    (("psycopg.AsyncConnection",), _Library(_async_cursor, True, **_PSYCOPG)),
    (("sqlalchemy.AsyncSession", "sqlalchemy.AsyncConnection"), _Library(_sqlalchemy_async, True, **_SQLALCHEMY)),
    (
        ("sqlalchemy.Session", "sqlalchemy.Connection", "sqlalchemy.scoped_session"),
        _Library(_sqlalchemy, False, **_SQLALCHEMY),
    ),
    (("psycopg.",), _Library(_cursor, False, **_PSYCOPG)),
    (("django.",), _Library(_cursor, False, _atomic, attrgetter("in_atomic_block"), lambda one: not one.is_usable())),
    (("psycopg2.", "psycopg2cffi."), _Library(_cursor, False, None, bool)),
)
"""By the first parts of the full names of a connection's class and of its bases."""


def _library(connection: Any) -> _Library | None:
    """Return the library of a connection; None if it is not supported."""
    # Users derive their own classes from those of the libraries, so this checks all bases.
    origins = {f"{base.__module__.partition('.')[0]}.{base.__qualname__}" for base in type(connection).__mro__}
    for names, library in _LIBRARIES:
        if any(
            origin.startswith(name) if name.endswith(".") else origin == name for origin in origins for name in names
        ):
            return library
    return None
