"""Many runs in a PostgreSQL store, copied by statements from a few that workers have made: a million starts would take an hour.

Each copy has the rows of its original: the run, the blocks of its history and, while it is open, its root job. Of eleven
consecutive ids, one is an open run and up to ten are closed. They began in the last two weeks: their retention is longer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mainspring.engines.postgres.partitions import DAY_US, HISTORY, RUNS

if TYPE_CHECKING:
    from postgres import Database

FIRST = 10**12 + 10**9
"""The first id, among those of the first term. The slots of copies are those of their originals."""
WEEKS = 2
OF_TYPES = {"sleep_long": 900, "listener": 99, "broken": 1}
"""Of a thousand open runs, those that sleep, wait for a signal, or are parked; ``few`` open runs sleep until a time."""
CLOSED = {"empty": 99, "refused": 1}
"""Of a hundred closed runs, those that have completed and have failed."""


@dataclass(frozen=True)
class Fill:
    """The numbers of copies. ``few``: those of open runs of a rare type, the oldest ones."""

    open: int
    closed: int = 0
    few: int = 50


def fill(database: Database, wanted: Fill) -> float:
    """Copy runs, and return the bytes of the store for each open one. The originals are all runs of the store."""
    now_us = int(time.time() * 1e6)
    for kind in (RUNS, HISTORY):
        for day in range(kind.begins(now_us - WEEKS * 7 * DAY_US), kind.begins(now_us), kind.days):
            name, begin = kind.name(day), day * DAY_US
            database.sql(
                f"CREATE TABLE IF NOT EXISTS mainspring.{name} PARTITION OF mainspring.{kind.table}"
                f" FOR VALUES FROM ({begin}) TO ({begin + kind.days * DAY_US})"
            )
    span_us = WEEKS * 7 * DAY_US - DAY_US
    kinds = _kinds(OF_TYPES, wanted.open) if wanted.open else []
    before = _bytes(database)
    begin_us = now_us - span_us
    if wanted.open:
        step_us = span_us // wanted.open
        for kind, every, parts in kinds:
            _copy(database, kind, wanted.open, (every, parts), f"{begin_us} + i * {step_us}", "i * 11", is_open=True)
    # The oldest of all: ids before the others.
    _copy(database, "sleep_until", wanted.few, (1, "0"), f"{begin_us} + i", "i - 1000000", is_open=True)
    database.sql("VACUUM ANALYZE")
    each = (_bytes(database) - before) / max(wanted.open, 1)
    if wanted.closed:
        step_us = span_us // wanted.closed
        place = "i / 10 * 11 + 1 + i % 10"
        for kind, every, parts in _kinds(CLOSED, wanted.closed):
            _copy(database, kind, wanted.closed, (every, parts), f"{begin_us} + i * {step_us}", place, is_open=False)
        database.sql("VACUUM ANALYZE")
    database.sql("CHECKPOINT")
    return each


def _kinds(shares: dict[str, int], number: int) -> list[tuple[str, int, str]]:
    """Return the types with the condition of their numbers: i % every in a range."""
    total, begin, found = sum(shares.values()), 0, []
    for kind, share in shares.items():
        found.append((kind, total, f"BETWEEN {begin} AND {begin + share - 1}"))
        begin += share
    assert number >= total
    return found


def _copy(
    database: Database,
    kind: str,
    number: int,
    share: tuple[int, str],
    begun: str,
    place: str,
    *,
    is_open: bool,
    due: str = "r.due_us + 172800000000 + n.i * 1000000",
) -> None:
    """Copy the runs of a type: those numbers i from 0 on of which i % share[0] is as share[1] says.

    ``due``: the time of the alarm, which is in the events, too, if it is that of a timer.
    """
    every, parts = share
    numbers = (
        f"(SELECT i, i / {every} AS j, {FIRST} + {place} AS new, {begun} AS begun"
        f" FROM generate_series(0::bigint, {number - 1}) AS i WHERE i % {every} {parts if ' ' in parts else '= ' + parts}) AS n"
    )
    condition = f"type = '{kind}' AND id < {FIRST - 10**8} AND status {'=' if is_open else '>'} 0"
    originals = (
        f"(SELECT *, row_number() OVER (ORDER BY id) - 1 AS at, count(*) OVER () AS of FROM runs WHERE {condition})"
    )
    settings = "SET search_path = mainspring; SET synchronous_commit = off; SET work_mem = '64MB';"
    closed = "0" if is_open else "n.begun + r.closed_us - r.started_us"
    database.sql(
        f"{settings} INSERT INTO runs (id, root, started_us, closed_us, events, history_bytes, input_size, output_size, decision,"
        " slot, due_us, parked_us, status, namespace, workflow_id, type, version, builds, about, parking)"
        f" SELECT new, new, n.begun, {closed}, events, history_bytes, input_size, output_size, decision, slot,"
        f" {due}, parked_us, status, namespace, replace(workflow_id, r.id::text, new::text), type,"
        " version, builds, about, parking"
        f" FROM {numbers} JOIN {originals} AS r ON r.at = n.j % r.of"
    )
    database.sql(
        f"{settings} INSERT INTO history (run, first, written_us, block)"
        f" SELECT new, h.first, {'h.written_us' if is_open else 'n.begun'}, {_with_due(due) if is_open else 'block'}"
        f" FROM {numbers} JOIN {originals} AS r ON r.at = n.j % r.of JOIN history AS h ON h.run = r.id"
    )
    if not is_open:
        return
    columns = _columns(database, "jobs")
    changed = {"id": "new", "place": "j.place + n.i", "created_us": "n.begun", "started_us": "n.begun"}
    values = ", ".join(changed.get(column, f"j.{column}") for column in columns)
    database.sql(
        f"{settings} INSERT INTO jobs ({', '.join(columns)}) SELECT {values}"
        f" FROM {numbers} JOIN {originals} AS r ON r.at = n.j % r.of JOIN jobs AS j ON j.id = r.root;"
        f" UPDATE counts SET number = number + (SELECT count(*) FROM {numbers}) WHERE state = 2 AND function ="
        f" (SELECT id FROM functions WHERE name = '{kind}')"
    )


def fill_timers(database: Database, number: int, first: float, seconds: float, place: int = 0) -> None:
    """Copy runs that sleep until times spread over ``seconds``, the first at a time; their ids begin at a place."""
    due = f"({int(first * 1e6)} + n.i * {int(seconds * 1e6)} / {number})"
    _copy(
        database,
        "sleep_until",
        number,
        (1, "0"),
        f"{int(time.time() * 1e6)}",
        f"{place} + i * 11",
        is_open=True,
        due=due,
    )
    database.sql("VACUUM ANALYZE")


def _with_due(due: str) -> str:
    """Return the expression for a block in which the time of the run's alarm, a number in MessagePack, is replaced."""
    stored = "('\\xcf'::bytea || int8send(r.due_us))"
    return (
        f"CASE WHEN position({stored} IN block) > 0"
        f" THEN overlay(block PLACING '\\xcf'::bytea || int8send({due}) FROM position({stored} IN block)) ELSE block END"
    )


def _columns(database: Database, table: str) -> list[str]:
    found = database.sql(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'mainspring' AND is_generated = 'NEVER'"
        f" AND table_name = '{table}' ORDER BY ordinal_position"
    )
    return [column for (column,) in found]


def _bytes(database: Database) -> int:
    """Return the bytes of all tables, with their indexes and large values."""
    ((size,),) = database.sql(
        "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r'"
        " AND relnamespace = 'mainspring'::regnamespace"
    )
    return int(size)
