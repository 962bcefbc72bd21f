"""The resource usage of a process, sampled while it runs, and a check that it does not grow."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from .watching import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.system.servers import Server

MINUTE: Final = 60.0
WARM_UP_MINUTES: Final = 2
"""Minutes before usage must stop growing."""


class Sample(NamedTuple):
    """The resource usage of a server at one time."""

    at: float
    memory: int
    descriptors: int
    threads: int
    log: int
    database: int
    wal: int


class Flat(NamedTuple):
    """The permitted growth of one resource, from the first minute after the warm-up to the last minute."""

    lows: float
    """Of the minimum in a minute: what is in use between attacks."""
    highs: float
    """Of the maximum in a minute."""


TOLERANCE: Final = {
    "memory": Flat(16 * MIB, 32 * MIB),
    "descriptors": Flat(8, 64),
    "threads": Flat(0, 2),
    "database": Flat(4 * MIB, 4 * MIB),
    "wal": Flat(4 * MIB, 4 * MIB),
}
LOG_PER_MINUTE: Final = 512 * 1024
"""Bytes of log per minute: 10 lines a second about the lost attempts of each function of the load, and a reserve."""


class Vitals(threading.Thread):
    """Samples a server every second."""

    def __init__(self, server: Server, store: Path) -> None:
        super().__init__(name="vitals", daemon=True)
        self.samples: list[Sample] = []
        self._server = server
        self._store = store
        self._begun = time.monotonic()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(1.0):
            self.samples.append(self._sample())

    def end(self) -> None:
        """Stop sampling."""
        self._over.set()
        self.join()

    def _sample(self) -> Sample:
        process = Path(f"/proc/{self._server.pid}")
        return Sample(
            time.monotonic() - self._begun,
            self._server.rss(),
            len([*(process / "fd").iterdir()]),
            len([*(process / "task").iterdir()]),
            self._server.log.stat().st_size,
            self._store.stat().st_size,
            self._store.with_name(f"{self._store.name}-wal").stat().st_size,
        )


def minutes(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Return the samples of each whole minute."""
    whole = int(samples[-1].at // MINUTE)
    return [[one for one in samples if one.at // MINUTE == number] for number in range(whole)]


def growth(samples: Sequence[Sample]) -> list[str]:
    """Return descriptions of all growth after the warm-up that exceeds its tolerance."""
    first, *others = minutes(samples)[WARM_UP_MINUTES:]
    found = []
    for name, tolerance in TOLERANCE.items():
        extremes: tuple[tuple[Callable[[list[int]], int], float], ...] = ((min, tolerance.lows), (max, tolerance.highs))
        for extreme, allowed in extremes:
            before, after = (extreme([getattr(one, name) for one in minute]) for minute in (first, others[-1]))
            if after - before > allowed:
                found.append(f"{extreme.__name__} of {name} grew from {before} to {after}")
    for number, minute in enumerate((first, *others), WARM_UP_MINUTES + 1):
        logged = minute[-1].log - minute[0].log
        if logged > LOG_PER_MINUTE:
            found.append(f"{logged} bytes were logged in minute {number}")
    return found


def table(samples: Sequence[Sample]) -> str:
    """Return the minimum and maximum of each minute as text."""
    lines = []
    for number, minute in enumerate(minutes(samples), 1):
        columns = []
        for name in (*TOLERANCE, "log"):
            values = [getattr(one, name) for one in minute]
            columns.append(f"{name} {min(values)}-{max(values)}")
        lines.append(f"minute {number}: {', '.join(columns)}")
    return "\n".join(lines)
