"""The rows of fire times as answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.api.answers.text import line, rfc3339
from mainspring.api.schedules import Run

if TYPE_CHECKING:
    from mainspring.ids import Handles
    from mainspring.schedules.model import Fire


def run_of(row: Fire, handles: Handles) -> Run:
    """Return a fire time as the API describes it."""
    return Run(
        schedule=row.schedule,
        fire_time=rfc3339(row.fire_us),
        until=rfc3339(row.until_us),
        state=row.state.value,
        reason=row.reason.value if row.reason is not None else None,
        cause="backfill" if row.operation else row.cause.value,
        handle=handles.of(row.job).decode() if row.job else None,
        node=row.node or None,
        worker=row.worker or None,
        started_at=rfc3339(row.started_us),
        ended_at=rfc3339(row.ended_us),
        outcome=row.outcome or None,
        error=line(row.error),
        attempt=row.attempt,
        parent=row.parent or None,
        finished=row.finished,
    )
