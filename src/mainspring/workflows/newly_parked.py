"""Log lines about runs that have just been parked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.workflows.observer import Changed

QUIET: Final = 60.0
"""Seconds between two lines about the runs of one version: a bad deployment parks all of them."""

log = structlog.get_logger("mainspring.workflows")


class NewlyParked:
    """Logs the first run of each version that is parked, at most once a minute. ``handle_of``: of a root job."""

    def __init__(self, handle_of: Callable[[int], bytes], monotonic: Callable[[], float]) -> None:
        self._handle_of = handle_of
        self._monotonic = monotonic
        self._logged: dict[tuple[str, str], float] = {}

    def check(self, run: Changed) -> None:
        """Log a run that its last transaction has parked."""
        if run.parked is None:
            return
        now, version = self._monotonic(), (run.type, run.version)
        if now - self._logged.get(version, -QUIET) < QUIET:
            return
        self._logged[version] = now
        key = f"{self._handle_of(run.root).decode()}@{run.run}"
        log.warning(
            "a run is parked",
            run=key,
            type=run.type,
            version=run.version,
            kind=run.parked.kind,
            problem=run.parked.message,
            do=f"`mainspring workflows show {key}` prints the reason, `mainspring workflows list --parked` the other parked runs",
        )
