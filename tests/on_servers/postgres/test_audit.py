"""The audit: the index of its objects, and the acts of nodes that write no number of their objects."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from tests.conformance.suite.paging import answer

from mainspring.access.audit import ListActs, RecordActs, row_of
from mainspring.access.caller import Act
from mainspring.access.store import SweepAccess
from mainspring.engines.postgres.connections import SESSION_SETTINGS
from mainspring.engines.postgres.transaction import SQL

from .a_fleet import node, session
from .test_jobs_plans import plan

ROWS: Final = """
    INSERT INTO audit (namespace, what, object, act)
    SELECT 'default', 'jobs.cancel', CASE WHEN {numbered} THEN i % 1000 END, '' FROM generate_series(1, 20000) AS i;
    ANALYZE
"""
STATES: Final = {
    "empty": "",
    "vacuumed": "VACUUM ANALYZE",
    "of before": ROWS.format(numbered="false"),
    "half and half": ROWS.format(numbered="i > 10000"),
    "full": ROWS.format(numbered="true"),
    "all dead": f"""{ROWS.format(numbered="true")};
        UPDATE pg_class SET reltuples = 0 WHERE relname = 'audit' AND relnamespace = current_schema()::regnamespace
    """,
}


@pytest.mark.parametrize("state", STATES)
def test_the_acts_on_an_object_are_read_in_the_order_of_their_index(database: str, state: str) -> None:
    async def test() -> None:
        async with node(database), session(database, **SESSION_SETTINGS) as other:
            for statement in filter(None, map(str.strip, STATES[state].split(";"))):
                await other.execute(statement)
            assert "audit_objects" in str(await plan(other, "acts_without_number", SQL))
            steps = await plan(other, "acts_on_object", SQL)
            assert {step["Index Name"] for step in steps if "Index Name" in step} == {"audit_objects"}, steps
            kinds = [step["Node Type"] for step in steps]
            # At most a page is sorted: the scans are limited.
            assert [kind for kind in kinds if kind in {"Limit", "Index Scan"}] == [
                "Limit",
                *["Limit", "Index Scan"] * 2,
            ]
            scans = [at for at, kind in enumerate(kinds) if kind == "Index Scan"]
            assert [kinds[at - 1] for at in scans] == ["Limit", "Limit"], kinds

    asyncio.run(asyncio.wait_for(test(), 60))


def test_acts_that_a_node_of_the_version_before_records_are_found(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            acts = [Act("jobs.cancel", "ann", name) for name in ("mine", "other", "mine", "mine")]
            for number, act in enumerate(acts):
                if number % 2:
                    await one.group(RecordActs([act]))
                else:
                    namespace, what, _, data = row_of(act)
                    await other.execute(
                        "INSERT INTO audit (namespace, what, act) VALUES ($1, $2, $3)", namespace, what, data
                    )
            found = await answer(one.engine, ListActs(object="mine"))
            numbers = [recorded.number for recorded in found.items]
            assert [recorded.act for recorded in found.items] == [acts[0]] * 3
            assert numbers == sorted(numbers, reverse=True)
            without = "SELECT count(*) FROM audit WHERE object IS NULL"
            assert await other.fetchval(without) == 2
            assert await one.group(SweepAccess(0, 0)) == [0]
            assert await other.fetchval(without) == 0
            assert (await answer(one.engine, ListActs(object="mine"))).items == found.items

    asyncio.run(asyncio.wait_for(test(), 60))
