"""The newest events of runs that a node does not have in memory, read for several runs at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.storage.query import Query
from mainspring.workflows.history import Event  # noqa: TC001 - the type of a query's answer
from mainspring.workflows.reading import decoded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.errors import StoreError
    from mainspring.storage.query import Meter
    from mainspring.storage.reads import Reads
    from mainspring.workflows.tables import Runs

    Place = tuple[int, int]
    """A run, and the number of the first event that is needed."""

MOST_BLOCKS: Final = 32
"""The blocks of a run above which its events are left out: a history that is so long is read by pages."""
MOST_RUNS: Final = 200
"""Runs of one read."""


class ReadLatest(Query["dict[int, list[Event] | str]"], frozen=True):
    """Read the events of runs, each from a number on. The answer leaves out long runs, and the last ones if its time is up.

    For a run whose events this version cannot read, it has the reason.
    """

    places: tuple[tuple[int, int], ...]


async def read_latest(runs: Runs, query: ReadLatest, meter: Meter) -> dict[int, list[Event] | str]:
    """Answer `ReadLatest`."""
    found: dict[int, list[Event] | str] = {}
    for run, first in query.places:
        if meter.is_late():
            break
        blocks = await runs.blocks(run, first, MOST_BLOCKS + 1)
        if len(blocks) <= MOST_BLOCKS:
            found[run] = decoded(blocks, first)
    return found


class LatestEvents:
    """Reads events for callers on one thread. Requests that arrive during a read share the next one."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._waiting: list[tuple[Place, Callable[[Sequence[Event] | str], None]]] = []
        self._is_reading = False
        self._after_answers: list[Callable[[], None]] | None = None

    def ask(self, run: int, first: int, done: Callable[[Sequence[Event] | str], None]) -> None:
        """Call ``done`` later with the events of a run from a number on; with none if they are many, or the store fails.

        If this version cannot read them, it is called with the reason.
        """
        self._waiting.append(((run, first), done))
        if not self._is_reading:
            self._next()

    def _next(self) -> None:
        asked, self._waiting = self._waiting[:MOST_RUNS], self._waiting[MOST_RUNS:]
        self._is_reading = True

        def answered(found: dict[int, list[Event] | str]) -> None:
            self._is_reading = False
            if self._waiting:
                self._next()
            self._after_answers = []
            for (run, _), done in asked:
                done(found.get(run, ()))
            after_answers, self._after_answers = self._after_answers, None
            for then in after_answers:
                then()

        def failed(error: StoreError) -> None:
            del error  # the workers ask for the events themselves, and repeat it
            answered({})

        self._reads.ask(ReadLatest(tuple(place for place, _ in asked)), answered, failed)

    def after_answers(self, then: Callable[[], None]) -> None:
        """Call ``then`` once all answers of a read are delivered; at once if none is being delivered."""
        if self._after_answers is None:
            then()
        else:
            self._after_answers.append(then)
