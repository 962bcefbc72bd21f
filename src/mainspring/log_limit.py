"""Limits for log lines that clients or failing tasks can cause at any rate."""

from __future__ import annotations


class LogLimit:
    """Lets one line through in so many seconds, and counts those that are left out. Times are monotonic seconds."""

    __slots__ = ("_left_out", "_next", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = float("-inf")
        self._left_out = 0

    def left_out(self, now: float) -> int | None:
        """Return how many lines were left out before this one; None: leave this one out, too."""
        if now < self._next:
            self._left_out += 1
            return None
        self._next = now + self._seconds
        left_out, self._left_out = self._left_out, 0
        return left_out


class KeyedLogLimit:
    """Lets so many lines a second through for each key, and counts those that are left out. Times are monotonic seconds.

    Of more than ``keys`` keys in one second, those that come last share one limit, that of the key "".
    """

    def __init__(self, lines: int = 10, keys: int = 1000) -> None:
        self._lines = lines
        self._keys = keys
        self._seconds: dict[str, _Second] = {}  # in the order in which they began
        self._over: list[tuple[str, int]] = []

    def allows(self, key: str, now: float) -> bool:
        """Say whether a line may be written."""
        self._end_seconds(now)
        if key not in self._seconds and len(self._seconds) >= self._keys:
            key = ""
        second = self._seconds.get(key)
        if second is None:
            second = self._seconds[key] = _Second(now + 1)
        second.lines += 1
        return second.lines <= self._lines

    def left_out(self, now: float) -> list[tuple[str, int]]:
        """Return the keys whose lines were left out, with their numbers, for each second that is over; each is returned once."""
        self._end_seconds(now)
        over, self._over = self._over, []
        return over

    @property
    def next_end(self) -> float | None:
        """When the first second is over in which lines were left out; None: none were."""
        return min((one.end for one in self._seconds.values() if one.lines > self._lines), default=None)

    def _end_seconds(self, now: float) -> None:
        while self._seconds:
            key = next(iter(self._seconds))
            second = self._seconds[key]
            if second.end > now:
                return
            del self._seconds[key]
            if second.lines > self._lines:
                self._over.append((key, second.lines - self._lines))


class _Second:
    """A second in which lines of one key were written: when it is over, and how many there were."""

    __slots__ = ("end", "lines")

    def __init__(self, end: float) -> None:
        self.end = end
        self.lines = 0
