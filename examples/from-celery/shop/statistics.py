"""5. A chord.  Celery: `chord([sum_day.s(day) for day in days])(add_up.s())`.

The parent is a coroutine: it submits its children and awaits all results. It occupies no thread while it waits. If it holds the
worker's last place, the worker opens another place for the children.
"""

from __future__ import annotations

from app import app
from shop.database import database


@app.task
def sum_day(day: str) -> int:
    """Return the sales of a day in cents."""
    with database() as connection:
        (cents,) = connection.execute("SELECT coalesce(sum(cents), 0) FROM sales WHERE day = ?", (day,)).fetchone()
    return int(cents)


@app.task(run_timeout="10m")
async def sum_days(days: list[str]) -> dict[str, int]:
    """Sum each day in a separate job; return all sums and the total."""
    jobs = await sum_day.asubmit_many([(day,) for day in days])
    sums = dict(zip(days, [cents async for cents in app.aresults(jobs)], strict=True))
    return {**sums, "total": sum(sums.values())}
