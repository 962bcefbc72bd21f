"""The shop's own data: a SQLite file, so that the example needs no server but Mainspring."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = """
CREATE TABLE IF NOT EXISTS sales (id INTEGER PRIMARY KEY, day TEXT NOT NULL, cents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS mails (address TEXT NOT NULL, subject TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS calls (customer INTEGER NOT NULL, event TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS search (product INTEGER PRIMARY KEY, indexed INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS reports (night TEXT PRIMARY KEY, cents INTEGER NOT NULL);
"""


@contextlib.contextmanager
def database() -> Iterator[sqlite3.Connection]:
    """Open the shop's file; commit at the end, or roll back if the block raises."""
    connection = sqlite3.connect("shop.sqlite3", timeout=30)
    try:
        connection.executescript(SCHEMA)
        with connection:
            yield connection
    finally:
        connection.close()
