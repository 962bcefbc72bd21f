"""8. Deduplication.  Celery: a lock in Redis, or the package celery-once."""

from __future__ import annotations

import time

from app import app
from shop.database import database


@app.task(unique=lambda product: f"product-{product}")
def index_product(product: int) -> int:
    """Write a product into the search index; return how often that has been done.

    While a job for a product is queued or runs, another submit for the product joins that job: it runs once, and all submitters
    get its result.
    """
    time.sleep(0.5)
    with database() as connection:
        connection.execute(
            "INSERT INTO search VALUES (?, 1) ON CONFLICT (product) DO UPDATE SET indexed = indexed + 1", (product,)
        )
        (times,) = connection.execute("SELECT indexed FROM search WHERE product = ?", (product,)).fetchone()
    return int(times)
