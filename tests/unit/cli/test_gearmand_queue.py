from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import msgspec
import pytest

from mainspring.cli.stores import read_queue
from mainspring.errors import StoreForeignError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


QUEUE_SCHEMA = (
    "CREATE TABLE {} ( unique_key TEXT, function_name TEXT, priority INTEGER, data BLOB, when_to_run INTEGER, "
    "PRIMARY KEY (unique_key, function_name))"
)
"""As gearmand 1.1.20 creates it."""

Row = tuple[str, str, int, bytes, int]

ROWS: list[Row] = [
    ("u1", "wc", 1, b"hello", 0),
    ("u2", "wc", 0, b"high\0", 0),
    ("", "wc", 2, b"", 1893456000),
]


def queue(path: Path, table: str = "gearman_queue", rows: Sequence[Row] = ROWS) -> Path:
    connection = sqlite3.connect(path)
    connection.execute(QUEUE_SCHEMA.format(table))
    connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return path


def test_rows_become_submits(tmp_path: Path) -> None:
    path = queue(tmp_path / "q.db")
    before = path.read_bytes()
    first, second, third = read_queue(path)
    assert (first.function, first.unique, first.payload) == (b"wc", b"u1", b"hello")
    assert second.payload == b"high\0"
    options = [msgspec.json.decode(request.options) for request in (first, second, third)]
    assert [one.get("priority") for one in options] == [None, "high", "low"]
    assert options[2]["run_at"] == "2030-01-01T00:00:00Z"
    assert all(one["keep_unique"] == 86400.0 for one in options)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["q.db"]


def test_a_row_without_a_unique_gets_the_same_one_in_each_import(tmp_path: Path) -> None:
    path = queue(tmp_path / "q.db")
    first, second = (list(read_queue(path)) for _ in range(2))
    assert first == second
    assert first[2].unique.startswith(b"import-")
    assert len(first[2].unique) <= 64


def test_another_table(tmp_path: Path) -> None:
    path = queue(tmp_path / "q.db", table="jobs")
    assert len(list(read_queue(path, "jobs"))) == 3
    with pytest.raises(StoreForeignError, match="--table"):
        list(read_queue(path))


def test_a_file_that_is_not_a_queue_is_named(tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish.db"
    rubbish.write_bytes(b"no database" * 100)
    for path in (rubbish, tmp_path / "missing.db", tmp_path):
        with pytest.raises(StoreForeignError, match="cannot read"):
            list(read_queue(path))


def test_a_file_of_an_older_gearmand_has_no_times(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "q.db")
    connection.execute("CREATE TABLE gearman_queue (unique_key TEXT, function_name TEXT, priority INTEGER, data BLOB)")
    connection.execute("INSERT INTO gearman_queue VALUES ('u', 'f', 1, NULL)")
    connection.commit()
    connection.close()
    (request,) = read_queue(tmp_path / "q.db")
    assert request.payload == b""
