"""The audit: the index of its objects."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from mainspring.engines.postgres.connections import SESSION_SETTINGS
from mainspring.engines.postgres.transaction import SQL

from .a_fleet import node, session
from .test_jobs_plans import plan

ROWS: Final = """
    INSERT INTO audit (namespace, what, object, act)
    SELECT 'default', 'jobs.cancel', i % 1000, '' FROM generate_series(1, 20000) AS i;
    ANALYZE
"""
STATES: Final = {
    "empty": "",
    "vacuumed": "VACUUM ANALYZE",
    "full": ROWS,
    "all dead": f"""{ROWS};
        UPDATE pg_class SET reltuples = 0 WHERE relname = 'audit' AND relnamespace = current_schema()::regnamespace
    """,
}


@pytest.mark.parametrize("state", STATES)
def test_the_acts_on_an_object_are_read_in_the_order_of_their_index(database: str, state: str) -> None:
    async def test() -> None:
        async with node(database), session(database, **SESSION_SETTINGS) as other:
            for statement in filter(None, map(str.strip, STATES[state].split(";"))):
                await other.execute(statement)
            steps = await plan(other, "acts_on_object", SQL)
            assert [(step["Node Type"], step.get("Index Name")) for step in steps] == [
                ("Limit", None),
                ("Index Scan", "audit_objects"),
            ]

    asyncio.run(asyncio.wait_for(test(), 60))
