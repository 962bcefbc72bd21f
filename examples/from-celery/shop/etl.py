"""1. ETL with progress.  Celery: `self.update_state(state="PROGRESS", meta={…})` with `bind=True`."""

from __future__ import annotations

import csv
from pathlib import Path

from app import app
from mainspring import current_job
from shop.database import database

BATCH = 100


@app.task(run_timeout="10m")
def load_sales(path: str) -> int:
    """Load a CSV file with the columns id, day and euros; return the number of rows.

    A job may run twice if its worker dies during the first run. Rows replace rows with the same id, so a second run does no harm.
    """
    job = current_job()
    with Path(path).open(newline="") as file:
        rows = list(csv.DictReader(file))
    for start in range(0, len(rows), BATCH):
        job.heartbeat()  # stop here if the job was cancelled
        batch = rows[start : start + BATCH]
        with database() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO sales VALUES (?, ?, ?)",
                [(int(row["id"]), row["day"], round(float(row["euros"]) * 100)) for row in batch],
            )
        job.progress(start + len(batch), len(rows))
    return len(rows)
