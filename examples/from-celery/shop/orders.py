"""4. A chain.  Celery: `chain(charge.s(order), reserve.s(), ship.s())`.

Each step submits the next one when its own work is done. No process waits for the chain, and each step has its own retries. The
unique makes a repeated step harmless: if a worker dies after it has submitted the next step, the second run of its own step joins
the existing job, and does not start the rest of the chain again.
"""

from __future__ import annotations

from app import app
from mainspring import Retry
from shop.database import database

RETRY = Retry(max_attempts=5, initial="1s")


@app.task(retry=RETRY, unique=lambda order: f"charge-{order}", keep_unique="1d")
def charge(order: int) -> None:
    """Take the money, then reserve the goods."""
    set_state(order, "charged")
    reserve.submit(order)


@app.task(retry=RETRY, unique=lambda order: f"reserve-{order}", keep_unique="1d")
def reserve(order: int) -> None:
    """Reserve the goods, then ship them."""
    set_state(order, "reserved")
    ship.submit(order)


@app.task(retry=RETRY, unique=lambda order: f"ship-{order}", keep_unique="1d")
def ship(order: int) -> None:
    """Ship the goods: the last step."""
    set_state(order, "shipped")


STEPS = ("charged", "reserved", "shipped")


def set_state(order: int, state: str) -> None:
    """Move an order forward; a late repetition of an earlier step has no effect."""
    with database() as connection:
        row = connection.execute("SELECT state FROM orders WHERE id = ?", (order,)).fetchone()
        if row is None or STEPS.index(row[0]) < STEPS.index(state):
            connection.execute("INSERT OR REPLACE INTO orders VALUES (?, ?)", (order, state))
