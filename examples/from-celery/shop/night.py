"""6. Cron with daylight saving time.  Celery: beat, `crontab(hour=2, minute=30)` and `timezone`.

The schedule is in the store, so no beat process is needed that must run exactly once. At a change of clocks, a time that does not
exist runs at the end of the gap, and a time that exists twice runs once.
"""

from __future__ import annotations

from zoneinfo import ZoneInfo

from app import app
from mainspring import current_job
from shop.database import database

ZONE = "Europe/Berlin"


@app.scheduled("30 2 * * *", timezone=ZONE, misfire="once", overlap="forbid")
def close_day() -> str:
    """Store the sales of the day before; a late or repeated run stores the same result."""
    fire_time = current_job().fire_time
    assert fire_time is not None, "a schedule fires this task"
    night = fire_time.astimezone(ZoneInfo(ZONE)).date().isoformat()
    with database() as connection:
        connection.execute(
            "INSERT OR REPLACE INTO reports SELECT ?, coalesce(sum(cents), 0) FROM sales WHERE day < ?", (night, night)
        )
    return night
