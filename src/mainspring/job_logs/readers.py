"""Readers that wait for lines of a job, here and at other nodes of the store.

A reader waits at any node, and the node that holds the job writes the lines. The reader's node asks that node to report them.
Reports may be lost, and nodes of older versions send none: so a reader also looks again after `WAKE_INTERVAL`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.events.relay import FollowLog, Logged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.job_logs.model import Chunk

WAKE_INTERVAL: Final = 1.0
"""Seconds after which a reader that waits looks again: its job may have ended."""
ASK_INTERVAL: Final = 1.0
"""Seconds between two requests to the node that holds a job."""
FOLLOWED_FOR: Final = 3.0
"""Seconds for which such a request holds."""
MOST_TAPPED: Final = 64
"""Chunks that a tap keeps for a reader that is slow."""


class Tap:
    """The chunks of one job that this node has written since `restart`, so that a reader need not read them from the store."""

    def __init__(self) -> None:
        self._claim: object = None
        self._chunks: list[Chunk] = []
        self._is_whole = False
        self._has_everything_before = False

    @property
    def is_whole(self) -> bool:
        """Whether the reader has or gets from `take` each chunk of this node."""
        return self._is_whole and self._has_everything_before

    def check(self, claim: object) -> None:
        """Keep nothing if the job is not under the claim of the last `restart`: another node may have written lines meanwhile.

        ``claim`` is the job in this node's memory, another object after each claim; None if this node does not hold it.
        """
        if claim is None or claim is not self._claim:
            self.drop()

    def restart(self, claim: object) -> None:
        """Keep what is written from now on. Call it before a read of the store."""
        self._claim, self._chunks = claim, []
        self._is_whole, self._has_everything_before = True, False

    def caught_up(self) -> None:
        """Note that the reader has everything that was stored at the last `restart`."""
        self._has_everything_before = True

    def add(self, chunk: Chunk) -> None:
        """Keep a chunk; forget all if there are too many, and the reader has to read the store."""
        if len(self._chunks) >= MOST_TAPPED:
            self.drop()
        elif self._is_whole:
            self._chunks.append(chunk)

    def take(self) -> list[Chunk]:
        """Return the kept chunks, and keep them no longer."""
        taken, self._chunks = self._chunks, []
        return taken

    def drop(self) -> None:
        """Keep nothing until `restart`."""
        self._claim, self._chunks = None, []
        self._is_whole = False


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
        self._taps: dict[int, list[Tap]] = {}
        self._asked: dict[int, float] = {}
        """The monotonic times of the last requests, by job."""
        self._elsewhere: dict[int, dict[int, float]] = {}
        """The terms of the nodes with readers, by job, and the monotonic times until which they are to get reports."""

    def tap(self, job: int) -> tuple[Tap, Callable[[], None]]:
        """Return a new tap for the lines of a job, and the function that ends it."""
        tap = Tap()
        taps = self._taps.setdefault(job, [])
        taps.append(tap)

        def end() -> None:
            taps.remove(tap)
            if not taps and self._taps.get(job) is taps:
                del self._taps[job]

        return tap, end

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

    def written(self, chunks: Iterable[Chunk]) -> None:
        """Wake the readers of jobs whose lines are stored now."""
        reports: dict[int, list[int]] = {}
        now = self._monotonic()
        jobs: dict[int, None] = {}
        for chunk in chunks:
            jobs[chunk.job] = None
            for tap in self._taps.get(chunk.job, ()):
                tap.add(chunk)
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
