"""The parts of a node's places that single callers occupy, so that one token cannot keep all others out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.access.caller import Caller


class Shares:
    """Counts the places of each caller. A caller gets at most ``most``."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of callers with a place."""
        return len(self._taken)

    def take(self, caller: Caller) -> bool:
        """Take a place for a caller; return False if it has too many."""
        holder = caller.holder
        taken = self._taken.get(holder, 0)
        if taken >= self.most:
            return False
        self._taken[holder] = taken + 1
        return True

    def free(self, caller: Caller) -> None:
        """Free a place of a caller."""
        holder = caller.holder
        taken = self._taken[holder] - 1
        if taken:
            self._taken[holder] = taken
        else:
            del self._taken[holder]
