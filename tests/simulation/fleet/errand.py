"""Coroutines without a loop: each of their awaits is a moment at which anything else may happen, or they may end for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator


class Moment:
    """What an errand waits for: nothing but its turn, unless ``ready`` says that there is more to it.

    One on the ``way`` to the store or from it stands still while the node is cut off, and may fail.
    """

    def __init__(self, ready: Callable[[], bool] = lambda: True, *, way: bool = False) -> None:
        self.ready = ready
        self.way = way

    def __await__(self) -> Generator[Moment, None, None]:
        yield self


class Errand:
    """A coroutine that goes on when it is told to. It begins at once, and comes to a `Moment` before it ends."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self.ended = self.failed = False
        self.value: Any = None
        """What it has returned."""
        self.moment = Moment()
        """What it waits for."""
        self.go_on()

    def go_on(self, error: StoreError | None = None) -> None:
        """Let it go on from where it waits; with an error, that is what became of its waiting."""
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
        """It never goes on: its process is gone, or it was cancelled."""
        self.ended = True
        self._coroutine.close()
