"""What the handlers of one transaction share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.sqlite.rows import Functions
from mainspring.engines.sqlite.statements import SQL

if TYPE_CHECKING:
    import apsw


class Transaction:
    """A cursor inside an open transaction, the functions' numbers, and the deltas of the counts."""

    def __init__(self, cursor: apsw.Cursor) -> None:
        self.cursor = cursor
        self.functions = Functions(cursor, SQL["function_id"], SQL["functions"])
        self._deltas: dict[tuple[int, int, int], int] = {}

    def count(self, function: int, state: int, priority: int, number: int) -> None:
        """Add to a count; both held states are counted as leased."""
        key = (function, 2 if state == 3 else state, priority)
        self._deltas[key] = self._deltas.get(key, 0) + number

    def write_counts(self) -> None:
        """Write the deltas, as the last thing before the commit."""
        if self._deltas:
            rows = [(*key, number) for key, number in self._deltas.items() if number]
            self._deltas.clear()
            self.cursor.executemany(SQL["count"], rows)

    def rolled_back(self) -> None:
        """Forget what the transaction did."""
        self._deltas.clear()
        self.functions.forget()
