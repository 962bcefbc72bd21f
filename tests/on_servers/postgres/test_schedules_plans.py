"""Every statement about schedules takes the index that was made for it, whatever the statistics were when its plan was made."""

from __future__ import annotations

import asyncio
import json
import re
from importlib.resources import files

import pytest

from mainspring.engines.postgres.connections import SESSION_SETTINGS
from mainspring.engines.postgres.transaction import SQL

from .a_fleet import node, session
from .test_jobs_plans import plan, plan_steps

INDEXES = {
    "specifications_since": {"specifications_version"},
    "lock_schedules": {"schedules_pkey"},
    "lock_free_schedules": {"schedules_pkey"},
    "fires": {"fires_pkey"},
    "unfinished_fires": {"fires_live"},
    "fires_of_jobs": {"fires_job"},
    "joins": {"joins_pkey"},
    "change_schedules": {"schedules_pkey"},
    "remove_schedules": {"schedules_pkey"},
    "save_fires": {"fires_pkey"},
    "remove_fires": {"fires_pkey"},
    "remove_joins": {"joins_pkey"},
    "to_repair": {"fires_to_mend", "jobs_pkey", "schedules_queued"},
    "joined_fires": {"fires_to_mend", "jobs_pkey"},
    "stuck_fires": {"fires_to_mend"},
    "queued_schedules": {"schedules_queued"},
    "due_schedules": {"schedules_due"},
    "next_schedule": {"schedules_due"},
    "named_schedules": {"schedules_pkey", "specifications_pkey"},
    "schedules": {"schedules_pkey", "specifications_pkey"},
    "newest_fires": {"fires_pkey"},
    "last_outcomes": {"fires_pkey"},
    "history": {"fires_pkey"},
    "names_of_fires": {"fires_pkey"},
    "oldest_fires": {"fires_pkey"},
    "forget_fires": {"fires_pkey"},
    "forgotten": {"forgotten_pkey"},
}
SORTED = {"lock_schedules", "lock_free_schedules", "unfinished_fires", "fires_of_jobs", "named_schedules"}
"""They find few, by names or jobs, and put them in order; `due_schedules` and `history` read in the order of an index."""

STATES = {
    "empty": "",
    "vacuumed": "VACUUM ANALYZE",
    "full": """
        INSERT INTO specifications SELECT 's' || i, i, '' FROM generate_series(1, 5000) AS i;
        INSERT INTO schedules SELECT 's' || i, 1, i, i % 2, '' FROM generate_series(1, 5000) AS i;
        INSERT INTO fires SELECT 's' || i % 50, i, CASE i % 5 WHEN 1 THEN i WHEN 2 THEN i END, i % 5,
            CASE WHEN i % 5 < 4 THEN 's' || i % 50 END, '' FROM generate_series(1, 20000) AS i;
        INSERT INTO joins SELECT 's' || i % 50, i, 1, false FROM generate_series(1, 5000) AS i;
        ANALYZE
    """,
    "a long history": """
        INSERT INTO schedules SELECT 's' || i, 1, i, 0, '' FROM generate_series(1, 10) AS i;
        INSERT INTO fires SELECT 's' || i % 10, i, NULL, 4, NULL, '' FROM generate_series(1, 20000) AS i;
        ANALYZE
    """,
    # The estimate of a table full of what is dead: no rows, many pages.
    "all dead": """
        INSERT INTO schedules SELECT 's' || i, 1, i, 1, '' FROM generate_series(1, 5000) AS i;
        INSERT INTO fires SELECT 's' || i % 50, i, i, 2, 's' || i % 50, '' FROM generate_series(1, 20000) AS i;
        ANALYZE;
        UPDATE pg_class SET reltuples = 0
        WHERE relname IN ('schedules', 'fires') AND relnamespace = current_schema()::regnamespace
    """,
}


@pytest.mark.parametrize("state", STATES)
def test_each_takes_the_index_that_was_made_for_it(database: str, state: str) -> None:
    async def test() -> None:
        async with node(database), session(database, **SESSION_SETTINGS) as other:
            for statement in filter(None, map(str.strip, STATES[state].split(";"))):
                await other.execute(statement)
            for name, indexes in INDEXES.items():
                steps = await plan(other, name, SQL)
                assert {step["Index Name"] for step in steps if "Index Name" in step} == indexes, (name, steps)
                sorts = [step for step in steps if step["Node Type"] == "Sort"]
                assert name in SORTED or not sorts or name == "to_repair", (name, steps)

    asyncio.run(test())


def test_the_newest_rows_of_a_time_are_read_without_the_rows_before_it(database: str) -> None:
    async def test() -> None:
        async with node(database), session(database, **SESSION_SETTINGS) as other:
            for statement in filter(None, map(str.strip, STATES["a long history"].split(";"))):
                await other.execute(statement)
            explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {SQL['newest_fires']}"
            stretches = json.dumps([(f"s{number}", 20_001, 19_901) for number in range(10)])
            (row,) = await other.fetch(explain, stretches, 1999, 1000)
            scans = [step for step in plan_steps(json.loads(row[0])[0]["Plan"]) if "Index Name" in step]
            assert sum(step["Actual Rows"] * step["Actual Loops"] for step in scans) == 200
            assert len(scans) == 2

    asyncio.run(test())


def test_every_statement_of_shared_slices_is_loaded_whole_and_used() -> None:
    packages = files("mainspring.engines.postgres"), files("mainspring.engines.sql")
    sources = [one.read_text("utf-8") for package in packages for one in package.iterdir() if one.name.endswith(".py")]
    sources.append(files("mainspring.access").joinpath("audit.py").read_text("utf-8"))  # it names the index of a query
    for name, statement in SQL.items():
        assert re.match(r"(SELECT|INSERT|UPDATE|DELETE|WITH|\(SELECT)\s", statement), name
        assert ";" not in statement
        assert any(f'"{name}"' in source for source in sources), name
