"""Every statement about runs looks rows up by indexes, whatever the statistics were when its plan was made."""

from __future__ import annotations

import asyncio
import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

from mainspring.engines.postgres import partitions
from mainspring.engines.postgres.connections import SESSION_SETTINGS
from mainspring.engines.postgres.partitions import DAY_US, HISTORY, RUNS
from mainspring.engines.postgres.transaction import SQL

from .a_fleet import node, session
from .test_jobs_plans import plan, plan_steps

if TYPE_CHECKING:
    from asyncpg import Connection, Record

STATEMENTS = sorted(
    name
    for package in ("mainspring.engines.postgres", "mainspring.engines.sql")
    for name in re.findall(
        r"^-- name: (\w+)$", files(package).joinpath("workflows.sql").read_text("utf-8"), re.MULTILINE
    )
)
SMALL = {"definitions", "locks", "nodes", "refused_signals"}
"""Small tables: one row for each version of a workflow and each node, and at most a thousand signals."""
FIRST = {"next_early", "errands", "errand_sizes", "next_runs", "sent_signals", "submitted"}
"""Statements that read the next entries of an index."""
OF_ALL_TIMES = {
    "blocks",
    "whole_histories",
    "load_run",
    "run_of_namespace",
    "last_run",
    "last_link",
    "forget_runs",
    "few_named",
    "list_runs",
    "list_these_runs",
    "next_runs",
    "next_early",
}
"""Statements that look into every partition: they have no time that rules any out."""
INDEXES = {
    "lock_runs": {"runs_open_pkey", "root", "runs_open_named", "jobs_pkey"},
    "try_lock_runs": {"runs_open_pkey"},
    "still_open": {"runs_open_pkey"},
    "lock_due_runs": {"runs_open_pkey"},
    "alarms_of": {"runs_open_pkey"},
    "append_blocks": {"runs_open_pkey"},
    "append_run": {"runs_open_pkey"},
    "reschedule_run": {"runs_open_pkey"},
    "change_run": {"runs_open_pkey"},
    "load_short_runs": {"runs_open_pkey", "snapshots_pkey"},
    "open_run": {"runs_open_named"},
    "open_runs_named": {"runs_open_named"},
    "open_of_version": {"runs_open_versions"},
    "count_open": {"runs_open_versions"},
    "count_parked": {"runs_open_parked"},
    "versions": {"runs_open_parked"},
    "next_builds": {"runs_open_parked"},
    "parked_runs": {"runs_open_parked"},
    "few_parked": {"runs_open_parked"},
    "list_open_runs": {"runs_open_pkey", "snapshots_pkey"},
    "list_these_open_runs": {"runs_open_pkey", "snapshots_pkey"},
    "due_runs": {"runs_open_due"},
    "next_run": {"runs_open_due"},
    "waiting_named": {"functions_names", "live"},
    "lock_waiting": {"jobs_pkey"},
    "lock_waiting_named": {"functions_names", "jobs_pkey", "live"},
    "early_request": {"early_requests"},
    "last_run": {"namespace_workflow_id_closed_us"},
    "last_link": {"root"},
    "few_named": {"runs_open_named", "namespace_workflow_id_closed_us"},
    "closed_runs": {"namespace_closed_us_id"},
    "forget_histories": {"run_first"},
    "blocks": {"run_first"},
    "whole_histories": {"run_first"},
}
"""The indexes of statements; those of partitions are named by their columns."""
OLD = 19_000 // 7 * 7
"""The first of the days in partitions that are no longer written."""
PARTITIONS = {kind.name(day) for day in (OLD, OLD + 7) for kind in (RUNS, HISTORY)}
RUNS_FULL = f"""
    INSERT INTO runs (id, root, started_us, closed_us, events, history_bytes, input_size, output_size, decision, slot, status,
        namespace, workflow_id, type, version, builds, due_us, parked_us)
    SELECT i, i - i % 3, 1, CASE WHEN i % 2 = 0 THEN 0 ELSE {OLD * DAY_US} + i % 14 * {DAY_US} END, 3, 3, 0, 0, i, 0, i % 2,
        'default', 'w' || i, 't' || i % 7, '1', '', CASE WHEN i % 5 = 0 THEN i END, CASE WHEN i % 11 = 0 THEN i END
    FROM generate_series(1::bigint, 20000) AS i;
    INSERT INTO history SELECT i / 5, i % 5, {OLD * DAY_US} + i % 21 * {DAY_US}, 'b' FROM generate_series(1::bigint, 40000) AS i;
    INSERT INTO snapshots SELECT i, 1, '' FROM generate_series(1::bigint, 20000) AS i;
    INSERT INTO early_signals SELECT i, 1, 1, i, 's', '' FROM generate_series(1::bigint, 20000) AS i;
    INSERT INTO sent_signals (namespace, run, name, request, input)
    SELECT 'default', 'w', 's', '', '' FROM generate_series(1::bigint, 20000) AS i;
    INSERT INTO errands (errand) SELECT '' FROM generate_series(1::bigint, 20000) AS i;
    INSERT INTO jobs (id, place, created_us, function, state, priority, slot, payload, uniq, term)
    SELECT i, i, 1, i % 5 + 1, i % 4, 1, 1, '', 'u' || i::text::bytea, CASE WHEN i % 4 > 1 THEN i % 3 + 1 ELSE 0 END
    FROM generate_series(1, 20000) AS i;
    ANALYZE
"""
STATES = {
    "empty": "",
    "vacuumed": "VACUUM ANALYZE",
    "full": RUNS_FULL,
    # The estimate of a table full of dead tuples: no rows, many pages.
    "all dead": f"""{RUNS_FULL};
        UPDATE pg_class SET reltuples = 0 WHERE relnamespace = current_schema()::regnamespace
            AND relname ~ '^(runs|history|snapshots|early_signals|sent_signals|errands)'
    """,
}


@pytest.mark.parametrize("state", STATES)
def test_rows_are_looked_up_by_their_indexes(database: str, state: str) -> None:
    async def test() -> None:
        async with node(database), session(database, **SESSION_SETTINGS) as other:
            await _fill(other, state)
            for name in STATEMENTS:
                scans = [step for step in await plan(other, name, SQL) if "Scan" in step["Node Type"]]
                tables = [step for step in scans if step.get("Relation Name", "definitions") not in SMALL]
                for step in tables:
                    assert step["Node Type"] in {"Index Scan", "Index Only Scan"}, (name, step)
                    assert "Index Cond" in step or name in FIRST, (name, step["Index Name"], step.get("Filter"))
                taken = {_index(step["Index Name"]) for step in tables}
                assert name not in INDEXES or taken <= INDEXES[name], (name, taken)
                parts = {step["Relation Name"] for step in tables} & PARTITIONS
                assert not parts or name in OF_ALL_TIMES, (name, parts)

    asyncio.run(test())


def _index(name: str) -> str:
    """Return the name of an index; of one that a partition has from its table, the columns."""
    match = re.fullmatch(r"(?:runs|history)_(?:\d{8}|open|other|kept)_((?:namespace|root|run)\w*)_idx", name)
    return name if match is None else match[1]


def test_the_old_runs_of_a_namespace_are_read_in_the_order_of_their_close(database: str) -> None:
    async def test() -> None:
        async with node(database), session(database, **SESSION_SETTINGS) as other:
            await _fill(other, "full")
            values = "('default', 9000000000000000, 100)"
            await other.execute(f"PREPARE closed AS {SQL['closed_runs']}")
            (row,) = await other.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE closed{values}")
            steps = list(plan_steps(json.loads(row[0])[0]["Plan"]))
            assert not [step for step in steps if step["Node Type"] in {"Sort", "Seq Scan"}]
            assert sum(step["Actual Rows"] * step["Actual Loops"] for step in steps if "Index Name" in step) <= 110

    asyncio.run(test())


async def _fill(other: Connection[Record], state: str) -> None:
    for day in (OLD, OLD + 7):
        for kind in (RUNS, HISTORY):
            await partitions.attach(other, kind, day)
    for statement in filter(None, map(str.strip, STATES[state].split(";"))):
        await other.execute(statement)
