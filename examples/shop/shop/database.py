"""The shop's own database: one SQLite file. It stands for your database and for the services outside.

Each function may be called twice with the same key, because a task may run twice.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLES = """
CREATE TABLE IF NOT EXISTS stock (product TEXT PRIMARY KEY, pieces INTEGER NOT NULL CHECK (pieces >= 0));
CREATE TABLE IF NOT EXISTS reservation (number INTEGER, product TEXT, pieces INTEGER, until REAL, PRIMARY KEY (number, product));
CREATE TABLE IF NOT EXISTS payment (key TEXT PRIMARY KEY, cents INTEGER, state TEXT, day TEXT);
CREATE TABLE IF NOT EXISTS mail (key TEXT PRIMARY KEY, recipient TEXT, subject TEXT);
CREATE TABLE IF NOT EXISTS customer (email TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS day (day TEXT PRIMARY KEY, cents INTEGER);
"""


@contextmanager
def transaction() -> Iterator[sqlite3.Connection]:
    """Return a connection whose changes are committed at the end of the block, unless it raises."""
    with closing(sqlite3.connect(os.environ.get("SHOP_DATABASE", "shop.db"), timeout=30)) as connection, connection:
        connection.executescript(TABLES)
        yield connection


def stock(product: str) -> int:
    """Return how many pieces of a product are free."""
    with transaction() as db:
        found = db.execute("SELECT pieces FROM stock WHERE product = ?", [product]).fetchone()
        return int(found[0]) if found else 0


def receive(product: str, pieces: int) -> None:
    """Put pieces into the stock."""
    with transaction() as db:
        db.execute(
            "INSERT INTO stock VALUES (?, ?) ON CONFLICT DO UPDATE SET pieces = pieces + excluded.pieces",
            [product, pieces],
        )


def mails() -> list[tuple[str, str]]:
    """Return the recipients and subjects of all mails, in the order in which they were sent."""
    with transaction() as db:
        return db.execute("SELECT recipient, subject FROM mail ORDER BY rowid").fetchall()


def payments() -> dict[str, str]:
    """Return the state of each payment by its key."""
    with transaction() as db:
        return dict(db.execute("SELECT key, state FROM payment ORDER BY rowid").fetchall())


def customers() -> list[str]:
    """Return the addresses of all customers."""
    with transaction() as db:
        return [email for (email,) in db.execute("SELECT email FROM customer ORDER BY email")]


def add_customer(email: str) -> None:
    """Keep the address of a customer."""
    with transaction() as db:
        db.execute("INSERT OR IGNORE INTO customer VALUES (?)", [email])


def running_out(low: int) -> list[str]:
    """Return the products of which fewer pieces than this are free."""
    with transaction() as db:
        return [
            product for (product,) in db.execute("SELECT product FROM stock WHERE pieces < ? ORDER BY product", [low])
        ]
