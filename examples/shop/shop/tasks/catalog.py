"""Pictures and the search index."""

from __future__ import annotations

import hashlib

from mainspring import current_job
from shop.app import app


@app.task(
    name="catalog.thumbnail", executor="process", run_timeout="30s", unique=lambda picture, width: f"{picture}-{width}"
)
def thumbnail(picture: str, width: int) -> str:
    """Make a small picture, in a process that a timeout kills; two requests for the same picture share one job."""
    return f"{hashlib.sha256(picture.encode()).hexdigest()[:8]}-{width}.webp"


@app.task(name="catalog.index", concurrency_per_key=1, concurrency_key=lambda section: section, run_timeout="10m")
async def index(section: str) -> int:
    """Index a section of the catalog; return the number of products. Each section is indexed once at a time."""
    products = [f"{section}-{number}" for number in range(3)]
    for done, _product in enumerate(products, start=1):
        current_job().progress(done, len(products), section)
    return len(products)


app.scheduled("0 4 * * sun", name="catalog.reindex", args=["all"], timezone="Europe/Berlin", misfire="skip")(index)
