"""The sales of a day."""

from __future__ import annotations

from datetime import timedelta
from zoneinfo import ZoneInfo

from mainspring import Retry, current_job
from shop import database
from shop.app import app
from shop.tasks import mail

BERLIN = ZoneInfo("Europe/Berlin")


def yesterday() -> str:
    """Return the day before the scheduled time in Berlin, which is the same however late the job runs."""
    fire_time = current_job().fire_time
    assert fire_time is not None
    return str((fire_time.astimezone(BERLIN) - timedelta(days=1)).date())


@app.scheduled(
    "30 2 * * *",
    timezone="Europe/Berlin",
    misfire="all",
    overlap="queue",
    name="reports.close_day",
    retry=Retry(max_attempts=3),
)
def close_day() -> int:
    """Add up the day before, also for days on which no node ran; return the cents."""
    day = yesterday()
    with database.transaction() as db:
        (cents,) = db.execute(
            "SELECT coalesce(sum(cents), 0) FROM payment WHERE state = 'captured' AND day = ?", [day]
        ).fetchone()
        db.execute("INSERT OR REPLACE INTO day VALUES (?, ?)", [day, cents])
        return int(cents)


@app.scheduled(parent=close_day, name="reports.mail_day")
def mail_day() -> str:
    """Mail the sum of a day to the owner when the day is closed."""
    day = yesterday()
    with database.transaction() as db:
        (cents,) = db.execute("SELECT cents FROM day WHERE day = ?", [day]).fetchone()
    return mail.send.options(unique=f"day-{day}").submit("owner@shop.example", f"{day}: {cents / 100:.2f} EUR").handle
