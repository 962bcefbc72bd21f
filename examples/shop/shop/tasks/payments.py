"""Payments. The bank knows the key of each one, so that an attempt that runs twice pays once."""

from __future__ import annotations

from mainspring import Retry
from shop import database
from shop.app import app

BANK = Retry(max_attempts=8, initial="5s", maximum="10m", never=(ValueError,))


@app.task(name="payments.authorize", retry=BANK, run_timeout="30s", tags=["money"])
def authorize(number: int, cents: int) -> str:
    """Reserve an amount on the customer's card, and return the payment."""
    key = f"payment-{number}"
    if cents > 1_000_000:
        raise ValueError(f"the bank refuses {cents} cents")
    with database.transaction() as db:
        db.execute("INSERT OR IGNORE INTO payment VALUES (?, ?, 'authorized', NULL)", [key, cents])
    return key


@app.task(name="payments.capture", retry=BANK, run_timeout="30s", tags=["money"], cancel="wait")
def capture(payment: str, day: str) -> None:
    """Take the reserved amount. A cancelled order waits for the outcome, and then refunds what was taken."""
    with database.transaction() as db:
        db.execute("UPDATE payment SET state = 'captured', day = ? WHERE key = ?", [day, payment])


@app.task(
    name="payments.refund", retry=Retry(max_attempts=20, initial="1m", maximum="6h"), run_timeout="30s", tags=["money"]
)
def refund(payment: str) -> None:
    """Give an amount back, captured or not."""
    with database.transaction() as db:
        db.execute("UPDATE payment SET state = 'refunded' WHERE key = ?", [payment])


def open_payments() -> list[str]:
    """Return the payments that are authorized and not captured."""
    return [key for key, state in database.payments().items() if state == "authorized"]
