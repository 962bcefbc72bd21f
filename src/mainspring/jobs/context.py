"""The objects that all parts of the jobs slice share, one of which queries the store for live uniques."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.jobs.store import FindUnique

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.events import Hub
    from mainspring.ids import Handles
    from mainspring.jobs.dispatch import Dispatch
    from mainspring.jobs.store import Found
    from mainspring.jobs.table import JobTable, Listeners
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.turns_of_loop import LongWork, Timers

if TYPE_CHECKING:
    Key = tuple[bytes, bytes]
    """A function and a unique."""
    Answer = Callable[[Found | None], None]
    Failed = Callable[[StoreError], None]


class _Question:
    __slots__ = ("asking", "overtaken")

    def __init__(self, first: tuple[Answer, Failed]) -> None:
        self.asking = [first]
        self.overtaken = False
        """A job with this unique was sent to the store after the query."""


class Uniques:
    """Sends one query for each unique, however many callers wait for it, and repeats it if the answer may be outdated."""

    def __init__(self, commits: CommitQueue) -> None:
        self._commits = commits
        self.questions: dict[Key, _Question] = {}

    def ask(self, key: Key, answer: Answer, failed: Failed) -> None:
        """Query the store; further calls with the same key share the answer, in their order."""
        question = self.questions.get(key)
        if question is not None:
            question.asking.append((answer, failed))
            return
        self.questions[key] = _Question((answer, failed))
        self._find(key)

    def _find(self, key: Key) -> None:
        def found(outcome: list[Found | None]) -> None:
            other = outcome[0]
            question = self.questions[key]
            if other is None and question.overtaken:
                question.overtaken = False
                self._find(key)
                return
            del self.questions[key]
            for answer, _ in question.asking:
                answer(other)

        def not_found(error: StoreError) -> None:
            for _, failed in self.questions.pop(key).asking:
                failed(error)

        self._commits.put(FindUnique([key]), found, not_found)

    def overtake(self, key: Key) -> None:
        """Note that a job of this function and unique was sent to the store; the counts include it already.

        A query in progress for that unique has to be repeated: its answer may be older.
        """
        question = self.questions.get(key)
        if question is not None:
            question.overtaken = True


class Context(NamedTuple):
    """Passive objects without references to the parts that use them. Each part copies what it needs when it is created."""

    table: JobTable
    dispatch: Dispatch
    commits: CommitQueue
    timers: Timers
    clock: Clock
    handles: Handles
    listeners: Listeners
    hub: Hub
    uniques: Uniques
    slices: LongWork
