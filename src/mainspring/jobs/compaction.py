"""Tables that give memory back.

A dict keeps the room of entries that are gone until something is added to it. After 400,000 foreground jobs of one client that is
20 MB for each table. The allocator gives back what the jobs themselves had: no trim of the heap is needed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

MIN_TABLE_BYTES: Final = 1_048_576
"""Bytes below which a table is left as it is."""
MAX_ENTRY_BYTES: Final = 400
"""Bytes for each entry above which it is too large. A dict that has just grown has about 100."""


def compact(table: MutableMapping[Any, Any]) -> None:
    """Make a table as large as its content, in place, and in the same order. It costs what is left in it."""
    size = sys.getsizeof(table)
    if size > MIN_TABLE_BYTES and size > MAX_ENTRY_BYTES * len(table):
        content = list(table.items())
        table.clear()
        table.update(content)
