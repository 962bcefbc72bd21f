"""A claim by key goes from key to key by its own index, with any statistics of the tables at the time of its plan."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.engines.postgres.connections import SESSION_SETTINGS
from mainspring.engines.postgres.transaction import load_statements

from .a_fleet import node, session

if TYPE_CHECKING:
    from collections.abc import Iterator

    import asyncpg

SQL = load_statements("resources.sql")
STATES = {
    "empty": "",
    "vacuumed": "VACUUM ANALYZE",
    "without keys": """
        INSERT INTO jobs (id, place, created_us, function, state, priority, slot, payload)
        SELECT i, i, 1, i % 5 + 1, i % 4, 1, i % 1024, '' FROM generate_series(1, 20000) AS i;
        ANALYZE
    """,
    "one hot key": """
        INSERT INTO jobs (id, place, created_us, function, state, priority, slot, payload, key)
        SELECT i, i, 1, 1, 1, 1, i % 1024, '', ':hot' FROM generate_series(1, 20000) AS i;
        ANALYZE
    """,
    "a key each": """
        INSERT INTO jobs (id, place, created_us, function, state, priority, slot, payload, key)
        SELECT i, i, 1, 1, 1, 1, i % 1024, '', (':' || i)::bytea FROM generate_series(1, 20000) AS i;
        ANALYZE
    """,
    # The estimate of a table full of dead tuples: no rows, many pages.
    "all dead": """
        INSERT INTO jobs (id, place, created_us, function, state, priority, slot, payload, key)
        SELECT i, i, 1, 1, 1, 1, 1, '', ':hot' FROM generate_series(1, 20000) AS i;
        ANALYZE;
        UPDATE pg_class SET reltuples = 0 WHERE relname = 'jobs' AND relnamespace = current_schema()::regnamespace
    """,
}


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)


async def plan(connection: asyncpg.Connection[asyncpg.Record], name: str) -> list[dict[str, Any]]:
    """Return the steps of a statement's generic plan that read jobs."""
    await connection.execute(f"PREPARE tested AS {SQL[name]}")
    number = len(set(re.findall(r"\$(\d+)", SQL[name])))
    try:
        (row,) = await connection.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE tested ({', '.join(['NULL'] * number)})")
    finally:
        await connection.execute("DEALLOCATE tested")
    return [step for step in _nodes(json.loads(row[0])[0]["Plan"]) if step.get("Relation Name") == "jobs"]


@pytest.mark.parametrize("state", STATES)
def test_claims_by_key_have_an_index(database: str, state: str) -> None:
    async def test() -> None:
        async with node(database), session(database) as other:
            for name, value in SESSION_SETTINGS.items():
                await other.execute(f"SELECT set_config('{name}', '{value}', false)")
            for statement in filter(None, map(str.strip, STATES[state].split(";"))):
                await other.execute(statement)
            used = {
                name: [(step["Node Type"], step.get("Index Name")) for step in await plan(other, name)]
                for name in ("keys", "claim_of_keys", "claim_of_none")
            }
            by_key = {("Index Scan", "queue_by_key"), ("Index Only Scan", "queue_by_key")}
            assert set(used["keys"]) <= by_key, used
            by_id = {("Index Scan", "jobs_pkey"), ("ModifyTable", None)}
            assert set(used["claim_of_keys"]) <= by_key | by_id, used
            assert set(used["claim_of_none"]) <= by_id | {("Index Scan", "queue")}, used

    asyncio.run(test())
