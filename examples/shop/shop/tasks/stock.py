"""The stock, with reservations that are given back when their time is over."""

from datetime import timedelta

from mainspring import current_job
from shop import database
from shop.app import app
from shop.models import Item

KEPT = timedelta(days=4)
"""An order that is not packed for so long has lost its reservation."""


@app.task(name="stock.reserve", run_timeout="10s")
def reserve(number: int, items: list[Item], now: float) -> None:
    """Take the pieces of an order out of the stock, all or none."""
    with database.transaction() as db:
        for item in items:
            reservation = [number, item.product, item.pieces, now + KEPT.total_seconds()]
            if db.execute("INSERT OR IGNORE INTO reservation VALUES (?, ?, ?, ?)", reservation).rowcount:
                taken = db.execute(
                    "UPDATE stock SET pieces = pieces - ?1 WHERE product = ?2 AND pieces >= ?1",
                    [item.pieces, item.product],
                )
                if not taken.rowcount:
                    raise LookupError(f"{item.product} is sold out")


@app.task(name="stock.release", run_timeout="10s")
def release(number: int) -> None:
    """Put the pieces of an order back, if it has any."""
    with database.transaction() as db:
        rows = db.execute("DELETE FROM reservation WHERE number = ? RETURNING product, pieces", [number]).fetchall()
        db.executemany("UPDATE stock SET pieces = pieces + ?2 WHERE product = ?1", rows)


@app.scheduled(every="1h", overlap="forbid", name="stock.sweep", run_timeout="1m")
def sweep() -> int:
    """Put the pieces of forgotten orders back; return how many orders those are."""
    fire_time = current_job().fire_time
    assert fire_time is not None
    with database.transaction() as db:
        found = db.execute(
            "SELECT DISTINCT number FROM reservation WHERE until < ?", [fire_time.timestamp()]
        ).fetchall()
    for (number,) in found:
        release(number)
    return len(found)
