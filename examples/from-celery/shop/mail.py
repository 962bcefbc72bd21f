"""2. Mail with backoff and a dead letter.  Celery: `autoretry_for`, `retry_backoff`, `max_retries`.

A job is kept after all its attempts have failed: `mainspring jobs list --state failed` shows it, and `mainspring jobs retry`
runs it again.
"""

from __future__ import annotations

from app import app
from mainspring import Retry, current_job
from shop.database import database


class UnknownAddressError(Exception):
    """The address does not exist: another attempt would not help."""


@app.task(
    retry=Retry(max_attempts=4, initial="100ms", factor=2, maximum="10m", never=(UnknownAddressError,)),
    run_timeout="30s",
)
def send_mail(address: str, subject: str) -> str:
    """Send a mail."""
    deliver(address, subject)
    return f"sent to {address} at attempt {current_job().attempt}"


def deliver(address: str, subject: str) -> None:
    """Simulate a mail server: `.busy` accepts the third attempt, `.down` none; `.invalid` is refused for good."""
    domain = address.rpartition(".")[2]
    if domain == "invalid":
        raise UnknownAddressError(f"there is no {address}")
    if domain == "down" or (domain == "busy" and current_job().attempt < 3):
        raise ConnectionError(f"the mail server of {address} does not answer")
    with database() as connection:
        connection.execute("INSERT INTO mails VALUES (?, ?)", (address, subject))
