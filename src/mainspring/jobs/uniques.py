"""Questions to the store, whether a job of some function and unique is live there."""

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
        """A job of this unique was sent to the store after the question."""


class Uniques:
    """Asks for each unique once, however many want to know, and again where the answer may be from before."""

    def __init__(self, commits: CommitQueue) -> None:
        self._commits = commits
        self.questions: dict[Key, _Question] = {}

    def ask(self, key: Key, answer: Answer, failed: Failed) -> None:
        """Ask the store; those who ask meanwhile with the same key are answered with it, in their order."""
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
        """A job of this function and unique is on its way to the store; it counts among the live ones already.

        Whoever is asking the store for that unique has to ask again: the answer may be from before.
        """
        question = self.questions.get(key)
        if question is not None:
            question.overtaken = True
