"""The named statements of the files with the ending ``.sql``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.sql import statements
from mainspring.storage.engine import run_synchronously

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import apsw

    from mainspring.engines.sql.statements import Handler, Values

SQL_FILES: Final = (
    "statements.sql",
    "schedules.sql",
    "resources.sql",
    "workflows.sql",
    "records.sql",
    "access.sql",
    "bulk.sql",
    "events.sql",
    "subscriptions.sql",
    "deadlines.sql",
    "holds.sql",
    "external.sql",
    "conflicts.sql",
    "completions.sql",
    "values.sql",
    "streams.sql",
)


_DIALECT: Final = {
    "rows": lambda *types: f"VALUES ({', '.join(f'${number}' for number, _ in enumerate(types, 1))})",
    "among": lambda *values: f"IN (SELECT value FROM json_each({values[0]}))",  # noqa: S608 - own statements
    "index": lambda name: f"INDEXED BY {name}",
}

SQL: Final = statements.load(__package__, SQL_FILES, _DIALECT, parameter="?")
"""The statements by name."""


class Statements:
    """``engines.sql.statements.Statements`` on a cursor. It never suspends."""

    def __init__(self, cursor: apsw.Cursor) -> None:
        self._cursor = cursor

    async def fetch(self, name: str, *values: Any) -> Sequence[Any]:
        """Return all rows."""
        return [*self._cursor.execute(SQL[name], values)]

    async def first(self, name: str, *values: Any) -> Any:
        """Return the first row, or None."""
        return next(iter([*self._cursor.execute(SQL[name], values)]), None)

    async def execute(self, name: str, *values: Any) -> int:
        """Return the number of changed rows."""
        self._cursor.execute(SQL[name], values)
        return self._cursor.connection.changes()

    async def many(self, name: str, rows: Iterable[Values]) -> int:
        """Run a statement for each row."""
        connection = self._cursor.connection
        before = connection.total_changes()
        self._cursor.executemany(SQL[name], rows)
        return connection.total_changes() - before

    async def each(self, name: str, rows: Iterable[Values]) -> Sequence[Any]:
        """Return the rows for each row."""
        return [*self._cursor.executemany(SQL[name], rows)]

    def among(self, values: Iterable[Any]) -> str:
        """Return values as JSON."""
        return json.dumps([*values])


def synchronous(handler: Handler) -> Callable[[Any, Sequence[Any]], Sequence[Any]]:
    """Return a shared handler as a function: here it never suspends."""
    return lambda tx, operations: run_synchronously(handler(tx, operations))
