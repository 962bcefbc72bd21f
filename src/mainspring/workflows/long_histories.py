"""Log lines about runs whose histories have become long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from mainspring.workflows.limits import warning

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.workflows.model import Limits
    from mainspring.workflows.observer import Changed

log = structlog.get_logger("mainspring.workflows")


class LongHistories:
    """Logs a run once when its history has many events, and once when it has many bytes. ``handle_of``: of a root job."""

    def __init__(self, limits: Limits, handle_of: Callable[[int], bytes]) -> None:
        self._limits = limits
        self._handle_of = handle_of

    def check(self, run: Changed) -> None:
        """Log a run whose last transaction has made its history long."""
        limits = self._limits
        if run.events < limits.warn_events and run.history_bytes < limits.warn_bytes:
            return
        problem = warning(limits, run.events, run.history_bytes, run.new_events, run.new_bytes)
        if problem:
            handle = self._handle_of(run.root).decode()
            log.warning("the history of a run is long", run=f"{handle}@{run.run}", type=run.type, problem=problem)
