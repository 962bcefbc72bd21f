"""Parcels, which another company carries."""

from __future__ import annotations

from mainspring import Rate, Retry
from shop.app import app

CARRIER = Retry(max_attempts=10, initial="10s", maximum="30m")


@app.task(name="parcels.book", retry=CARRIER, run_timeout="1m", concurrency=4)
def book(number: int) -> str:
    """Book a parcel. The carrier takes four requests at a time."""
    return f"parcel-{number}"


@app.task(name="parcels.state", retry=CARRIER, run_timeout="1m", rate=Rate(10, per="1s"))
def state(parcel: str) -> str:
    """Return where a parcel is: on_its_way or delivered."""
    return "delivered" if parcel else "on_its_way"
