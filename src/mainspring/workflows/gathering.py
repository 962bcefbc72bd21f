"""Requests that are gathered into one operation, and sets of functions that a predicate describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import StoreError
    from mainspring.workflows.requests import Failed

T = TypeVar("T")


class Gathered(Generic[T]):
    """The callers of an operation to which several requests were added."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self.callers: list[tuple[Callable[[Any], None], Failed]] = []

    def add(self, item: T, done: Callable[[Any], None], failed: Failed) -> None:
        """Add a request."""
        self.items.append(item)
        self.callers.append((done, failed))

    def failed(self, error: StoreError) -> None:
        """Report an error to all callers."""
        for _, failed in self.callers:
            failed(error)


class Functions:
    """The functions for which a predicate is true; None is unknown."""

    def __init__(self, predicate: Callable[[bytes], bool | None]) -> None:
        self._predicate = predicate

    def __contains__(self, function: object) -> bool:
        return isinstance(function, bytes) and self._predicate(function) is True
