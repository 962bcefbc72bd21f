"""Submits inside a transaction of the caller: the job exists if and only if that transaction commits.

A submit calls the function ``submit`` of the store's schema in PostgreSQL, over the caller's own connection. The function adds
a row to the store's inbox and returns the handle; nodes turn the rows of committed transactions into jobs. Nothing here ever
commits, rolls back, or waits for a node.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.client.validation import check_text
from mainspring.errors import UsageError
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.client.options import Options
    from mainspring.client.session import Request

DEFAULT_SCHEMA: Final = "mainspring"

_PRIORITIES: Final = {None: 1, "high": 0, "normal": 1, "low": 2}
_ARGUMENT_NAMES: Final = (
    "function",
    "payload",
    "uniq",
    "priority",
    "delay",
    "run_at",
    "expires",
    "options",
    "namespace",
)
_ARGUMENT_TYPES: Final = ("bytea", "bytea", "bytea", "int", "float8", "float8", "float8", "bytea", "text")


class Inbox:
    """A store's inbox, reached over a connection of the caller, of any supported library.

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
        if self.asynchronous:
            raise UsageError("this connection is asynchronous: await asubmit(…) instead of submit(…)")
        handle: str = self._send(self._connection, self._schema, _values(request, options, namespace))
        return handle

    async def asubmit(self, request: Request, options: Options, namespace: str) -> str:
        """Add a job of a namespace and return its handle; accepts connections of both kinds, and blocks with a blocking one."""
        answer: Any = self._send(self._connection, self._schema, _values(request, options, namespace))
        handle: str = await answer if inspect.isawaitable(answer) else answer
        return handle


def _values(request: Request, options: Options, namespace: str) -> tuple[Any, ...]:
    """Return the arguments of ``submit``, in the order of _ARGUMENT_NAMES.

    The namespace is left out if it is the default one: nodes of older versions have made the schema without that argument.
    """
    kept: dict[str, Any] = {
        name: value for name in ("timeout", "heartbeat", "keep_unique") if (value := getattr(options, name)) is not None
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


def _call(schema: str, marks: list[str]) -> str:
    arguments = ", ".join(f"CAST({mark} AS {kind})" for mark, kind in zip(marks, _ARGUMENT_TYPES, strict=False))
    return f"SELECT {schema}.submit({arguments})"


def _asyncpg(connection: Any, schema: str, values: tuple[Any, ...]) -> Any:
    return connection.fetchval(_call(schema, [f"${number}" for number in range(1, len(values) + 1)]), *values)


def _cursor(connection: Any, schema: str, values: tuple[Any, ...]) -> Any:
    """Call ``submit`` on a connection of psycopg 2 or 3, or of Django."""
    with connection.cursor() as cursor:
        cursor.execute(_call(schema, ["%s"] * len(values)), values)
        return cursor.fetchone()[0]


async def _async_cursor(connection: Any, schema: str, values: tuple[Any, ...]) -> Any:
    async with connection.cursor() as cursor:
        await cursor.execute(_call(schema, ["%s"] * len(values)), values)
        return (await cursor.fetchone())[0]


def _sqlalchemy_call(schema: str, values: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
    from sqlalchemy import text  # noqa: PLC0415 - the caller has imported it, for the connection

    named = dict(zip(_ARGUMENT_NAMES, values, strict=False))
    return text(_call(schema, [f":{name}" for name in named])), named


def _sqlalchemy(connection: Any, schema: str, values: tuple[Any, ...]) -> Any:
    return connection.execute(*_sqlalchemy_call(schema, values)).scalar_one()


async def _sqlalchemy_async(connection: Any, schema: str, values: tuple[Any, ...]) -> Any:
    return (await connection.execute(*_sqlalchemy_call(schema, values))).scalar_one()


def _sender(connection: Any) -> tuple[Callable[[Any, str, tuple[Any, ...]], Any], bool] | None:
    """Return the function that calls ``submit`` on a connection, and whether its result must be awaited."""
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
