"""Mails to customers and staff."""

from __future__ import annotations

from mainspring import Rate, Retry, current_job
from shop import database
from shop.app import app


@app.task(
    name="mail.send",
    retry=Retry(max_attempts=5, initial="30s", maximum="1h", never=(ValueError,)),
    run_timeout="1m",
    rate=Rate(50, per="1s"),
    tags=["mail"],
)
def send(recipient: str, subject: str) -> None:
    """Send a mail. Its key is the job's handle, so a second attempt does not send it again."""
    if "@" not in recipient:
        raise ValueError(f"{recipient!r} is no address")
    with database.transaction() as db:
        db.execute("INSERT OR IGNORE INTO mail VALUES (?, ?, ?)", [current_job().handle, recipient, subject])
    current_job().log.info("sent %r", subject, recipient=recipient)
