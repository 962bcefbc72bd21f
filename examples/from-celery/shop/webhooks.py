"""7. A rate for each customer.  Celery: `rate_limit` counts one worker's calls of a task, all customers together."""

from __future__ import annotations

import time

from app import app
from mainspring import Rate
from shop.database import database


def by_customer(customer: int, event: str) -> str:  # noqa: ARG001 - it is called with all arguments of the task
    """Return the key whose jobs share a rate."""
    return f"customer-{customer}"


@app.task(rate_per_key=Rate(5, per="1s", burst=2), concurrency_key=by_customer)
def call_webhook(customer: int, event: str) -> None:
    """Tell a customer's server about an event.

    Each customer gets five calls a second at most, from all nodes and workers together, and one with many events delays no
    other.
    """
    with database() as connection:
        connection.execute("INSERT INTO calls VALUES (?, ?, ?)", (customer, event, time.time()))
