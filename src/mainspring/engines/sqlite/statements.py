"""The named statements of the files with the ending ``.sql``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.sql import statements

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import apsw

    from mainspring.engines.sql.statements import Values

SQL_FILES: Final = (
    "statements.sql",
    "schedules.sql",
    "resources.sql",
    "workflows.sql",
    "records.sql",
    "access.sql",
    "bulk.sql",
)


def _rows(types: Sequence[str]) -> str:
    return f"VALUES ({', '.join(f'${number}' for number in range(1, len(types) + 1))})"


SQL: Final = statements.load(__package__, SQL_FILES, rows=_rows, parameter="?")
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

    async def many(self, name: str, rows: Iterable[Values]) -> None:
        """Run a statement for each row."""
        self._cursor.executemany(SQL[name], rows)
