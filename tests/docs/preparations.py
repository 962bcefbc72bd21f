"""What is on a reader's machine before a page begins: ``<!-- test: with NAME -->``."""

from __future__ import annotations

import shutil
import sqlite3
import time
from typing import TYPE_CHECKING, Final

from .pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def gearmand_queue(directory: Path) -> None:
    """Make a file as gearmand 1.1.20 writes it with ``-q libsqlite3``."""
    with sqlite3.connect(directory / "queue.db") as connection:
        connection.execute(
            "CREATE TABLE gearman_queue (unique_key TEXT, function_name TEXT, priority INTEGER, data BLOB,"
            " when_to_run INTEGER, PRIMARY KEY (unique_key, function_name))"
        )
        connection.executemany(
            "INSERT INTO gearman_queue VALUES (?, ?, ?, ?, ?)",
            [
                ("cat-100", "resize", 1, b"cat.png 100", 0),
                ("cat-200", "resize", 0, b"cat.png 200", 0),
                ("", "report", 2, b"", int(time.time()) + 86_400),
            ],
        )
    connection.close()


def javascript(directory: Path) -> None:
    """Put the example beside what uses it."""
    shutil.copy(ROOT / "examples" / "javascript" / "mainspring.js", directory)


PREPARATIONS: Final[dict[str, Callable[[Path], None]]] = {"gearmand_queue": gearmand_queue, "javascript": javascript}
