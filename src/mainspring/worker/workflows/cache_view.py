"""The runs in a worker's memory, for people: a line in its log, and a report to its servers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from mainspring.quantities import format_size

if TYPE_CHECKING:
    from mainspring.worker.link import Link
    from mainspring.worker.workflows.run_cache import RunCache
    from mainspring.workflows.decider_workers import CacheReport

REPORT_INTERVAL: Final = 10.0
"""Seconds between two reports to the servers, if something has changed."""
REPORTS_PER_LINE: Final = 6
"""Reports for each line in the log."""

_log = structlog.get_logger("mainspring.workflows")


class CacheView:
    """Shows a cache, for the connections that ``agreed`` names."""

    def __init__(self, cache: RunCache) -> None:
        self._cache = cache
        self._links: dict[Link, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._reported: CacheReport | None = None
        self._logged = cache.numbers()
        self._ticks = 0

    def attach(self) -> None:
        """Begin, on the running loop."""
        self._timer = asyncio.get_running_loop().call_later(REPORT_INTERVAL, self._tick)

    def agreed(self, link: Link) -> None:
        """Report to a server over a new connection, once it has registered the workflows."""
        self._links[link] = None
        self._reported = None

    def lost(self, link: Link) -> None:
        """Forget a connection."""
        self._links.pop(link, None)

    def close(self) -> None:
        """End, with a last line in the log."""
        if self._timer is not None:
            self._timer.cancel()
        self._log_line()

    def _tick(self) -> None:
        self.attach()
        self._ticks += 1
        if self._reported != (numbers := self._cache.numbers()):
            self._reported = numbers
            report = msgspec.json.encode(numbers._asdict())
            for link in self._links:
                link.session.report_cache(report)
                link.flush()
        if self._ticks % REPORTS_PER_LINE == 0:
            self._log_line()

    def _log_line(self) -> None:
        numbers, before = self._cache.numbers(), self._logged
        if numbers == before:
            return
        self._logged = numbers
        _log.info(
            "runs of workflows in memory",
            runs=numbers.runs,
            size=format_size(numbers.bytes),
            limit=format_size(numbers.limit),
            decisions=numbers.decisions - before.decisions,
            hits=numbers.hits - before.hits,
            replays=numbers.replays - before.replays,
            evictions=numbers.evictions - before.evictions,
        )
