"""Queries for live stored jobs by function and unique."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.store import FindUnique

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import StoreError
    from mainspring.jobs.store import Found
    from mainspring.storage.commit_queue import CommitQueue

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
