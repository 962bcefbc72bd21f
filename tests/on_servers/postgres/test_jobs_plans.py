"""Every statement of the job operations uses indexes, with any statistics of the tables at the time of its plan."""

from __future__ import annotations

import asyncio
import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.engines.postgres.connections import SESSION_SETTINGS
from mainspring.engines.postgres.transaction import JOBS_SQL

from .a_fleet import node, session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import asyncpg

WRITTEN = set(JOBS_SQL) - {"partitions", "top", "now"}
"""Statements about jobs; the others read the catalogue, or no table."""
LISTS = {"list_jobs", "list_ended", "list_dead"}
"""Statements that read jobs in the order of ids until enough match."""
FIRST = {"next", "read_backlog", "sweep", "take_inbox", "few_held", "few_pending", "few_pending_of", "few_scheduled"}
"""Statements that read the first entries of an index."""
SMALL = {"functions", "counts", "terms", "journal", "entry", "retired", "refused_submissions", "limits", "event_ends"}
"""Small tables, and tables whose rows are all needed."""

STATES = {
    "empty": "",
    "vacuumed": "VACUUM ANALYZE",
    "full": f"""
        INSERT INTO jobs (id, place, created_us, function, state, priority, slot, payload, uniq, due_us, expires_us, term)
        SELECT i, i, 1, i % 5 + 1, i % 4, 1, i % 1024, '', 'u' || i::text::bytea, CASE i % 4 WHEN 0 THEN i END, i,
            CASE WHEN i % 4 > 1 THEN i % 3 + 1 ELSE 0 END FROM generate_series(1, {20_000}) AS i;
        INSERT INTO dead (id, place, ended_us, created_us, term, function, attempt, suspects, input_size, state, priority, slot,
            payload)
        SELECT 100000 + i, i, i, 1, 0, 1, 0, 0, 0, i % 3 + 5, 1, 1, '' FROM generate_series(1, 20000) AS i;
        INSERT INTO ended (id, ended_us, created_us, term, function, attempt, suspects, input_size, output_size, priority)
        SELECT 200000 + i, i, 1, 1, 1, 1, 0, 0, 0, 1 FROM generate_series(1, 20000) AS i;
        INSERT INTO waits SELECT i, 1 FROM generate_series(1, 20000) AS i;
        INSERT INTO inbox (function) SELECT 'f' FROM generate_series(1, 20000);
        ANALYZE
    """,
    "roots": """
        INSERT INTO jobs (id, place, created_us, function, state, priority, slot, payload, term)
        SELECT i, i, 1, i % 5 + 1, 3, 1, i % 1024, '', -1 FROM generate_series(1, 20000) AS i;
        INSERT INTO dead (id, place, ended_us, created_us, term, function, attempt, suspects, input_size, state, priority, slot,
            payload)
        SELECT 100000 + i, i, i, 1, -1, 1, 0, 0, 0, i % 3 + 5, 1, 1, '' FROM generate_series(1, 20000) AS i;
        INSERT INTO ended (id, ended_us, created_us, term, function, attempt, suspects, input_size, output_size, priority)
        SELECT 200000 + i, i, 1, -1, 1, 1, 0, 0, 0, 1 FROM generate_series(1, 20000) AS i;
        ANALYZE
    """,
    # The estimate of a table full of dead tuples: no rows, many pages.
    "all dead": """
        INSERT INTO jobs (id, place, created_us, function, state, priority, slot, payload)
        SELECT i, i, 1, 1, 1, 1, 1, '' FROM generate_series(1, 20000) AS i;
        INSERT INTO waits SELECT i, 1 FROM generate_series(1, 20000) AS i;
        INSERT INTO inbox (function) SELECT 'f' FROM generate_series(1, 20000);
        ANALYZE;
        UPDATE pg_class SET reltuples = 0
        WHERE relname IN ('jobs', 'waits', 'inbox') AND relnamespace = current_schema()::regnamespace
    """,
}


def plan_steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return all steps of a plan."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from plan_steps(part)


async def plan(
    connection: asyncpg.Connection[asyncpg.Record], name: str, statements: Mapping[str, str] = JOBS_SQL
) -> list[dict[str, Any]]:
    """Return the steps of a statement's generic plan."""
    prepared = f"tested_{name}"
    await connection.execute(f"PREPARE {prepared} AS {statements[name]}")
    number = len(set(re.findall(r"\$(\d+)", statements[name])))
    values = f"({', '.join(['NULL'] * number)})" if number else ""
    try:
        (row,) = await connection.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE {prepared}{values}")
    finally:
        await connection.execute(f"DEALLOCATE {prepared}")
    return list(plan_steps(json.loads(row[0])[0]["Plan"]))


@pytest.mark.parametrize("state", STATES)
def test_rows_are_looked_up_by_indexes(database: str, state: str) -> None:
    async def test() -> None:
        async with node(database), session(database, **SESSION_SETTINGS) as other:
            await other.execute("SELECT nextval('places')")
            for statement in filter(None, STATES[state].split(";")):
                await other.execute(statement)
            for name in sorted(WRITTEN):
                for step in await plan(other, name):
                    table = step.get("Relation Name")
                    if table is None or table in SMALL:
                        continue
                    if step["Node Type"] in {"ModifyTable", "LockRows"}:
                        continue
                    assert step["Node Type"] in {"Index Scan", "Index Only Scan"}, (name, step)
                    assert "Index Cond" in step or name in LISTS | FIRST, (name, step)

    asyncio.run(test())


INDEXES = {
    "claim": {"queue", "jobs_pkey"},
    "lowest": {"queue"},
    "submit_unique": set[str](),
    "live": {"live"},
    "succeed": {"jobs_pkey"},
    "end_unsuccessful": {"jobs_pkey"},
    "give_back": {"jobs_pkey"},
    "assign": {"jobs_pkey"},
    "cancel": {"jobs_pkey"},
    "held_by": {"held"},
    "held_elsewhere": {"held"},
    "forget": {"jobs_pkey"},
    "request_stop": {"jobs_pkey"},
    "stopping": {"jobs_pkey"},
    "begun": {"jobs_pkey"},
    "pending": {"queue"},
    "waiting": {"jobs_pkey"},
    "take": {"jobs_pkey"},
    "end_roots": {"jobs_pkey"},
    "reject_roots": {"jobs_pkey"},
    "withdraw": {"jobs_pkey"},
    "is_held": {"jobs_pkey"},
    "due": {"due", "jobs_pkey"},
    "expire": {"expiring", "jobs_pkey"},
    "next": {"due", "expiring"},
    "few_pending": {"queue"},
    "few_pending_of": {"queue"},
    "few_scheduled": {"due"},
    "few_held": {"held"},
    "list_these": {"jobs_pkey"},
    "list_jobs": {"jobs_pkey"},
    "mark_tagged": {"tags_pkey"},
    "tagged": {"tags_pkey"},
    "mark_jobs": {"jobs_pkey"},
    "drop_foreground": {"jobs_pkey", "waits_pkey"},
    "leave": {"waits_pkey"},
}


@pytest.mark.parametrize("state", STATES)
def test_each_statement_uses_its_index(database: str, state: str) -> None:
    async def test() -> None:
        async with node(database), session(database, **SESSION_SETTINGS) as other:
            await other.execute("SELECT nextval('places')")
            for statement in filter(None, STATES[state].split(";")):
                await other.execute(statement)
            for name, indexes in INDEXES.items():
                steps = await plan(other, name)
                taken = {step["Index Name"] for step in steps if "Index Name" in step} - {
                    "functions_pkey",
                    "functions_names",
                }
                assert taken == indexes, name
            # Entries at the head of an index need no sort.
            for name in (
                "claim",
                "pending",
                "due",
                "expire",
                "lowest",
                "next",
                "take_inbox",
                "read_backlog",
                "list_jobs",
                "mark_jobs",
            ):
                steps = await plan(other, name)
                assert not [step for step in steps if step["Node Type"] == "Sort" and _sorts_a_table(step)], name

    asyncio.run(test())


def _sorts_a_table(step: dict[str, Any]) -> bool:
    """Return whether a sort's input comes from a table, and not from rows that were selected before."""
    (source,) = (part for part in step["Plans"] if part["Parent Relationship"] == "Outer")
    return "Relation Name" in source


def test_every_statement_of_the_file_is_loaded_completely() -> None:
    text = files("mainspring.engines.postgres").joinpath("jobs.sql").read_text("utf-8")
    assert list(JOBS_SQL) == re.findall(r"^-- name: (\w+)$", text, re.MULTILINE)
    for name, statement in JOBS_SQL.items():
        assert re.match(r"(SELECT|INSERT|UPDATE|DELETE|WITH)\s", statement), name
        assert ";" not in statement
        assert "-- name" not in statement


def test_every_statement_is_used() -> None:
    sources = "".join(
        file.read_text("utf-8") for file in files("mainspring.engines.postgres").iterdir() if file.name.endswith(".py")
    )
    for name in JOBS_SQL:
        assert f'"{name}"' in sources, name
