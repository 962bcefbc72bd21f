"""Readers that wait for lines of a job, here and at other nodes of the store.

A reader waits at any node, and the node that holds the job writes the lines. The reader's node asks that node to report them.
Reports may be lost, and nodes of older versions send none: so a reader also looks again after `WAKE_INTERVAL`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.events.relay import FollowLog, Logged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WAKE_INTERVAL: Final = 1.0
"""Seconds after which a reader that waits looks again: its job may have ended."""
ASK_INTERVAL: Final = 1.0
"""Seconds between two requests to the node that holds a job."""
FOLLOWED_FOR: Final = 3.0
"""Seconds for which such a request holds."""


class LogReaders:
    """The waiting readers of a node. ``later`` calls a function after some seconds.

    ``send`` sends a message to the node of a term; None: no other node shares the store. ``term`` returns that of this node.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
        term: Callable[[], int],
        send: Callable[[int, FollowLog | Logged], object] | None = None,
    ) -> None:
        self._monotonic = monotonic
        self._later = later
        self._term = term
        self._send = send
        self._waiters: dict[int, list[Callable[[], None]]] = {}
        self._asked: dict[int, float] = {}
        """The monotonic times of the last requests, by job."""
        self._elsewhere: dict[int, dict[int, float]] = {}
        """The terms of the nodes with readers, by job, and the monotonic times until which they are to get reports."""

    def wait(self, job: int, holder: int, then: Callable[[], None]) -> None:
        """Call a function when there may be more lines of a job. ``holder`` is the term of its node, or no term."""
        self._ask(job, holder)
        waiters = self._waiters.setdefault(job, [])

        def give_up() -> None:
            if then in waiters:
                waiters.remove(then)
                if not waiters and self._waiters.get(job) is waiters:
                    del self._waiters[job]
                then()

        waiters.append(then)
        self._later(WAKE_INTERVAL, give_up)

    def _ask(self, job: int, holder: int) -> None:
        term = self._term()
        if self._send is None or holder in {0, term}:
            return
        now = self._monotonic()
        if now - self._asked.get(job, -ASK_INTERVAL) >= ASK_INTERVAL:
            if len(self._asked) > 1000:
                self._asked = {one: at for one, at in self._asked.items() if now - at < ASK_INTERVAL}
            self._asked[job] = now
            self._send(holder, FollowLog(job, term))

    def received(self, message: FollowLog | Logged) -> None:
        """Process a message of another node."""
        if isinstance(message, Logged):
            for job in message.ids:
                self._wake(job)
        else:
            self._elsewhere.setdefault(message.id, {})[message.by] = self._monotonic() + FOLLOWED_FOR

    def written(self, jobs: Iterable[int]) -> None:
        """Wake the readers of jobs whose lines are stored now."""
        reports: dict[int, list[int]] = {}
        now = self._monotonic()
        for job in jobs:
            self._wake(job)
            for term, until in self._elsewhere.get(job, {}).items():
                if until > now:
                    reports.setdefault(term, []).append(job)
        for term, ids in reports.items():
            if self._send is not None:
                self._send(term, Logged(ids))

    def tidy(self) -> None:
        """Forget the readers of other nodes that have left. Call it from time to time."""
        now = self._monotonic()
        kept = {job: {term: at for term, at in terms.items() if at > now} for job, terms in self._elsewhere.items()}
        self._elsewhere = {job: terms for job, terms in kept.items() if terms}

    def _wake(self, job: int) -> None:
        waiters = self._waiters.pop(job, [])
        woken = waiters[:]
        waiters.clear()
        for then in woken:
            then()
