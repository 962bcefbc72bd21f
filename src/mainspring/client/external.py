"""Work that runs elsewhere, as programs define it: the class, and what its ``status`` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from mainspring.client.options import check_progress_text, check_text, refusal, seconds
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from mainspring.client.options import Duration

A_contra = TypeVar("A_contra", contravariant=True)
M = TypeVar("M")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Running:
    """The work goes on. ``progress`` is the share that is done, from 0 to 1; None: unknown. ``text`` is for people."""

    progress: float | None = None
    text: str = ""

    def __post_init__(self) -> None:
        given: object = self.progress
        if given is not None and (
            isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= 1
        ):
            raise refusal("progress", "a share from 0 to 1", given)
        check_progress_text(self.text)


@dataclass(frozen=True, slots=True)
class Done(Generic[R_co]):
    """The work has succeeded, with a result."""

    result: R_co = None  # type: ignore[assignment] # of work without a result


@dataclass(frozen=True, slots=True)
class Failed:
    """The work has failed. ``error`` is a text or an exception. ``retry``: the task's policy decides about another attempt."""

    error: str | BaseException
    retry: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.error, BaseException):
            check_text(self.error, "error")


class Throttled(Exception):  # noqa: N818 - it is no error: the other system asks for a pause
    """The other system asks for a pause: raised by ``submit``, ``status`` and ``cancel``, with the time to wait."""

    def __init__(self, pause: Duration = 1.0) -> None:
        self.pause = seconds(pause, "pause")
        if not 0 < self.pause <= 3600:
            raise UsageError(f"a pause takes more than 0 s and at most an hour: it is {pause!r}")
        super().__init__(f"throttled for {self.pause:g} s")


class ExternalWork(Protocol[A_contra, M, R_co]):
    """Work in another system, for ``@app.external``. ``logs(meta)`` and ``find(key)`` are optional.

    ``find`` returns the ``meta`` of what was submitted under a key, or None. Without it, a submission whose answer was lost is
    repeated under its key before it can be cancelled.
    """

    def submit(self, args: A_contra, /, key: str) -> Coroutine[Any, Any, M | Failed]:
        """Submit the work, and return what the other methods need; or `Failed`, if the other system has surely not taken it.

        Two calls with one key must submit it once.
        """

    def status(self, meta: M, /) -> Coroutine[Any, Any, Running | Done[R_co] | Failed]:
        """Return how far the work is."""

    def cancel(self, meta: M, /) -> Coroutine[Any, Any, None]:
        """End the work. It may be called several times, and after its end."""
