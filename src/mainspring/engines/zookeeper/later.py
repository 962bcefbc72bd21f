"""An outcome that a handler gives after it has returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_NONE: Final = object()


class Later:
    """Stands among a handler's outcomes for one that comes later. Both methods are called once, in either order."""

    def __init__(self) -> None:
        self._outcome: Any = _NONE
        self._told: Callable[[Any], None] | None = None

    def answer(self, outcome: Any) -> None:
        """Give the outcome, or the StoreError that takes its place."""
        self._outcome = outcome
        if self._told is not None:
            self._told(outcome)

    def then(self, told: Callable[[Any], None]) -> None:
        """Call a function with the outcome, at once where it is there already."""
        self._told = told
        if self._outcome is not _NONE:
            told(self._outcome)
