"""The simulated ensemble: answers are delayed and connections fail at random, and every change is passed to a history."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.tree import Create, Done
from tests.zookeeper.memory import Fate, MemoryContent, MemoryTree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from mainspring.engines.zookeeper.tree import Change, Refused

    from .history import History

ANSWER_INTERVAL = 0.000_001
"""The smallest number of seconds between two answers of one session, which keeps them in order."""


class Ensemble(MemoryContent):
    """The content, which passes every change to a history."""

    def __init__(self, history: History, now_us: Callable[[], int]) -> None:
        super().__init__(now_us=now_us)
        self.history = history
        history.content = self

    def apply(self, changes: Sequence[Change], session: int = 0) -> Done | Refused:
        outcome = super().apply(changes, session)
        if isinstance(outcome, Done):
            self.history.happened(changes)
        return outcome


class Way(MemoryTree):
    """A node's way to the ensemble: each request takes time, and their order does not change."""

    def __init__(
        self, content: Ensemble, chance: Random, faults: Random, *, session_timeout: float, lag: float
    ) -> None:
        """``faults`` decides about lost events and slow syncs alone: other faults stay what they are without these."""
        super().__init__(content, session_timeout=session_timeout)
        self._chance = chance
        self._lag = lag
        self._free = 0.0
        self.failure_rate = 0.0
        """The probability that the outcome of a commit is lost."""
        self.message_loss = 0.0
        """The probability that a message to another node is lost, even without other faults: messages are best effort."""
        self.event_loss = 0.0
        """The probability that an event is lost, and that its watches are never called."""
        self.sync_lag = 0.0
        """The mean number of seconds that a sync takes more than a read."""
        self.loses = lambda _: faults.random() < self.event_loss
        self._faults = faults
        self.before = self._fate
        self.hangs_up = lambda: chance.random() < 0.5

    def _next(self) -> float:
        now = asyncio.get_running_loop().time()
        delay = ANSWER_INTERVAL if self._chance.random() < 0.85 else self._chance.expovariate(1 / self._lag)
        self._free = max(self._free + ANSWER_INTERVAL, now + delay)
        return self._free

    async def sync(self) -> None:
        if self.sync_lag:  # it goes to the leader, and later requests of the session wait for it
            now = asyncio.get_running_loop().time()
            self._free = max(self._free, now) + self._faults.expovariate(1 / self.sync_lag)
        await super().sync()

    async def _pause(self) -> None:
        if not self._is_killed:
            loop = asyncio.get_running_loop()
            turn = loop.create_future()
            loop.call_at(self._next(), _wake, turn)
            await turn
        if self._is_killed:
            raise asyncio.CancelledError("the process has ended")

    def _soon(self, call: Callable[[], None]) -> None:
        if not self._is_killed:
            self._loop.call_at(self._next(), lambda: None if self._is_killed else call())

    def _fate(self, changes: Sequence[Change]) -> Fate | None:
        if self.message_loss and _is_message(changes) and self._chance.random() < self.message_loss:
            return Fate.REQUEST_LOST
        if self._chance.random() >= self.failure_rate:
            return None
        fate = self._chance.choice((Fate.REQUEST_LOST, Fate.ANSWER_LOST, Fate.LATE, None))
        if fate is None:  # it arrives after its request has failed
            session = self._session
            self._loop.call_later(self._chance.expovariate(2.0), lambda: self._arrive(changes, session))
            return Fate.REQUEST_LOST
        return fate

    def _arrive(self, changes: Sequence[Change], session: int) -> None:
        if session in self.content.sessions:
            self.content.apply(changes, session)


def _is_message(changes: Sequence[Change]) -> bool:
    return any(
        isinstance(change, Create) and change.sequence and change.path.startswith(f"{paths.MAIL}/")
        for change in changes
    )


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
