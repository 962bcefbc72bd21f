"""7. A rate for each customer.  Celery: `rate_limit` limits a task in one worker, for all customers in total."""

from __future__ import annotations

import time

from app import app
from mainspring import Rate
from shop.database import database


def by_customer(customer: int, event: str) -> str:  # noqa: ARG001 - Mainspring calls it with all arguments of the task
    """Return the key whose jobs share a rate."""
    return f"customer-{customer}"


@app.task(rate_per_key=Rate(5, per="1s", burst=2), concurrency_key=by_customer)
def call_webhook(customer: int, event: str) -> None:
    """Send an event to a customer's server.

    Each customer gets at most five calls a second from all nodes and workers in total. A customer with many events does not delay
    the others.
    """
    with database() as connection:
        connection.execute("INSERT INTO calls VALUES (?, ?, ?)", (customer, event, time.time()))
