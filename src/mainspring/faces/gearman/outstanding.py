"""The requests of one peer that are in progress, and their limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Outstanding:
    """Counts the requests of a peer that wait for the store, and their memory.

    Above ``limit`` requests or ``limit_bytes`` bytes ``pressure(True)`` is called, and ``pressure(False)`` once at most half of
    both is left, so that a peer is not paused and resumed for each request. Results are not counted: the jobs that a worker holds
    bound them, and its heartbeats use the same connection.
    """

    __slots__ = ("_bytes", "_full", "_limit", "_limit_bytes", "_number", "_pressure", "_then")

    def __init__(self, limit: int, limit_bytes: int, pressure: Callable[[bool], None]) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._pressure = pressure
        self._number = self._bytes = 0
        self._full = False
        self._then: Callable[[], None] | None = None

    def when_none(self, then: Callable[[], None]) -> None:
        """Call a function once no request is in progress, perhaps at once."""
        if self._number:
            self._then = then
        else:
            then()

    def add(self, number: int, size: int = 0) -> None:
        """Count requests with a total of ``size`` bytes."""
        self._number += number
        self._bytes += size
        if not self._full and (self._number > self._limit or self._bytes > self._limit_bytes):
            self._full = True
            self._pressure(True)

    def remove(self, number: int, size: int = 0) -> None:
        """Remove requests that are done from the counts."""
        self._number -= number
        self._bytes -= size
        if self._full and self._number * 2 <= self._limit and self._bytes * 2 <= self._limit_bytes:
            self._full = False
            self._pressure(False)
        if self._then is not None and not self._number:
            then, self._then = self._then, None
            then()
