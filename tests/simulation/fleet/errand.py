"""Coroutines without a loop: at each await anything else may happen, or the coroutine may end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator


class Moment:
    """An await of an errand, which may continue as soon as ``ready`` returns True.

    A moment on the ``way`` to the store or from it does not end while the node is cut off, and may fail.
    """

    def __init__(self, ready: Callable[[], bool] = lambda: True, *, way: bool = False) -> None:
        self.ready = ready
        self.way = way

    def __await__(self) -> Generator[Moment, None, None]:
        yield self


class Errand:
    """A coroutine that the simulation resumes. It begins at once, and reaches a `Moment` before it ends."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self.ended = self.failed = False
        self.value: Any = None
        """Its return value."""
        self.moment = Moment()
        """The moment at which it waits."""
        self.go_on()

    def go_on(self, error: StoreError | None = None) -> None:
        """Resume it; with an error, raise the error at its await."""
        try:
            if error is None:
                self.moment = self._coroutine.send(None)
            else:
                self.moment = self._coroutine.throw(error)
        except StopIteration as end:
            self.ended, self.value = True, end.value
        except StoreError:
            self.ended = self.failed = True

    def end(self) -> None:
        """End it for good, because its process has ended or it was cancelled."""
        self.ended = True
        self._coroutine.close()
