"""Shares of a node's loop, so that large requests of one caller do not delay the requests of others.

All requests of a node run in one thread. While several callers have requests, long work of each is done in pieces, and a rest
follows after each piece, in which the loop serves the others at once. A caller without others has the whole loop; its long calls,
too, are done in pieces, between which its other requests pass. Work is measured where all requests pass: at the large reads of a
connection and at the steps of a call. Small requests are never delayed: the limits of each connection bound their number.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

T = TypeVar("T")

SHARE_IN_SCOPE: Final = "mainspring.share"
"""The key of a function in the scope of an HTTP request: it is called with the share of the request's caller."""

PIECE: Final = 0.0005
"""Seconds of work after which a call goes on in a later turn of the loop, and a caller beside others rests."""
SHORT: Final = 0.0002
"""Seconds of work that is not counted: that of a small request. Else the loop would idle under many of them."""
REST: Final = 2.0
"""The rest, as a multiple of the work before it."""
LONGEST_REST: Final = 0.05
"""Seconds of the longest rest: heartbeats on the same connection wait, too."""
CROWD: Final = 0.05
"""Seconds after a change from one caller to another for which the loop has several callers."""
CROWDED_SLICE: Final = 0.002
"""Seconds that the small requests of one read may take while the loop has several callers."""
LARGE_READ: Final = 64 * 1024
"""Bytes of one read after which a connection waits for the next turn of the loop: it has probably sent more."""
RELEASE_INTERVAL: Final = 0.001
"""Seconds between two releases of connections that wait for the same share."""
MOST: Final = 1024
"""Shares above which those of callers that do not rest are forgotten."""


class LoopShares:
    """The shares of all callers. ``at`` calls a function at a monotonic time."""

    def __init__(self, at: Callable[[float, Callable[[], None]], object], monotonic: Callable[[], float]) -> None:
        self.at = at
        self.monotonic = monotonic
        self._shares: dict[tuple[str, str], LoopShare] = {}
        self._latest: LoopShare | None = None
        """The share of the latest work."""
        self.crowded_until = 0.0
        """The monotonic time until which the loop has several callers."""
        self.charged = 0.0
        """Seconds of work since the start, of all shares."""

    def of(self, holder: str, namespace: str) -> LoopShare:
        """Return the share of a caller in a namespace; ``holder`` is `Caller.holder`."""
        share = self._shares.get((holder, namespace))
        if share is None:
            if len(self._shares) >= MOST:
                now = self.monotonic()
                self._shares = {key: one for key, one in self._shares.items() if one.rests(now)}
            share = self._shares[holder, namespace] = LoopShare(self)
        return share

    def is_crowded(self) -> bool:
        """Return whether several callers have requests."""
        return self.monotonic() < self.crowded_until

    def enter(self, share: LoopShare, now: float) -> None:
        """Process the begin of a piece of a caller's work."""
        if share is not self._latest:
            if self._latest is not None:
                self.crowded_until = now + CROWD
            self._latest = share


class LoopShare:
    """The share of one caller."""

    __slots__ = ("_even_at", "_is_scheduled", "_resumes_at", "_waiting", "shares")

    def __init__(self, shares: LoopShares) -> None:
        self.shares = shares
        self._even_at = 0.0
        """The monotonic time at which the caller has rested enough for its work."""
        self._resumes_at = 0.0
        """The monotonic time until which it rests."""
        self._waiting: deque[tuple[Callable[[], object], float]] = deque()
        """Functions that wait for the end of the rest, each with the seconds that its work may take."""
        self._is_scheduled = False

    def rests(self, now: float) -> bool:
        """Return whether the caller has to rest now."""
        return now < self._resumes_at

    def charge(self, seconds: float, now: float) -> None:
        """Count work that ends now. Beside others, a rest follows once there was enough of it."""
        shares = self.shares
        shares.charged += seconds
        if seconds < SHORT or now >= shares.crowded_until:
            return
        even_at = self._even_at = min(max(self._even_at, now) + seconds * REST, now + LONGEST_REST)
        if even_at - now > PIECE * REST:
            self._resumes_at = even_at

    def when_rested(self, then: Callable[[], object], seconds: float = PIECE) -> None:
        """Call a function after the rest; work of about so many seconds follows."""
        self._waiting.append((then, seconds))
        if not self._is_scheduled:
            self._is_scheduled = True
            self.shares.at(self._resumes_at, self._release)

    async def rested(self) -> None:
        """Return when the caller need not rest."""
        if self.rests(self.shares.monotonic()):
            rested = asyncio.get_running_loop().create_future()
            self.when_rested(lambda: None if rested.done() else rested.set_result(None))
            await rested

    def _release(self) -> None:
        """Release as many as work for one piece: the others wait for the rest after it."""
        waiting, shares = self._waiting, self.shares
        now = shares.monotonic()
        left = PIECE
        try:
            while waiting and left > 0 and not self.rests(now):
                then, seconds = waiting.popleft()
                left -= seconds
                then()
        finally:
            self._is_scheduled = bool(waiting)
            if waiting:
                interval = RELEASE_INTERVAL if now < shares.crowded_until else 0.0
                shares.at(max(self._resumes_at, now + interval), self._release)


class Piece:
    """Work of a caller from now until `end`. Pieces inside of it are charged once.

    ``requested``: it answers a request of the caller, and is no news that the node sends.
    """

    __slots__ = ("_before", "_began", "share")

    def __init__(self, share: LoopShare, *, requested: bool = True) -> None:
        self.share = share
        shares = share.shares
        self._began = shares.monotonic()
        self._before = shares.charged
        if requested:
            shares.enter(share, self._began)

    def is_long(self) -> bool:
        """Return whether the work has to go on in a later turn of the loop: also commits of the same caller wait for it."""
        return self.share.shares.monotonic() - self._began >= PIECE

    def end(self) -> float:
        """Charge the work; return its seconds."""
        shares = self.share.shares
        now = shares.monotonic()
        seconds = now - self._began - (shares.charged - self._before)
        self.share.charge(seconds, now)
        return seconds


class Paced(Generic[T]):
    """Awaits a coroutine, and charges each of its steps to the share that ``of`` returns; it may become known meanwhile."""

    __slots__ = ("_of", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], of: Callable[[], LoopShare | None]) -> None:
        self._work = work
        self._of = of

    def __await__(self) -> Generator[Any, Any, T]:
        value: Any = None
        error: BaseException | None = None
        while True:
            share = self._of()
            piece = None if share is None else Piece(share, requested=False)  # it may be a stream
            try:
                awaited = self._work.send(value) if error is None else self._work.throw(error)
            except StopIteration as end:
                answer: T = end.value
                return answer
            finally:
                value = error = (
                    None  # this frame is in the traceback of the error: together they would keep the request
                )
                if piece is not None:
                    piece.end()
            try:
                value = yield awaited
            except BaseException as raised:  # noqa: BLE001 - the coroutine handles it
                error = raised
