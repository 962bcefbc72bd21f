from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import apsw
import pytest

from mainspring.engines.sqlite import store_file
from mainspring.engines.sqlite.statements import SQL, SQL_FILES

COVERING = "SEARCH jobs USING COVERING INDEX"
PARTIAL = "SEARCH jobs USING INDEX"
"""An index without ``term``, which its condition implies; no row is read for that (`test_the_queue_is_read_without_its_rows`)."""
BY_ID = "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)"
RUN_BY_ID = "SEARCH runs USING INTEGER PRIMARY KEY (rowid=?)"
AMONG = ["LIST SUBQUERY 1", "SCAN json_each VIRTUAL TABLE INDEX 1:"]

PART_OF_RUNS = [
    "COMPOUND QUERY",
    "LEFT-MOST SUBQUERY",
    "CO-ROUTINE found",
    "SEARCH runs USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
    "SCALAR SUBQUERY 3",
    "MATERIALIZE mark",
    "SEARCH runs USING INTEGER PRIMARY KEY (rowid<?)",
    "SCAN mark",
    "CORRELATED SCALAR SUBQUERY 2",
    "SEARCH snapshots USING INTEGER PRIMARY KEY (rowid=?)",
    "SCAN found",
    "UNION ALL",
    RUN_BY_ID,
    "SCALAR SUBQUERY 7",
    "SCAN mark",
    "CORRELATED SCALAR SUBQUERY 6",
    "SEARCH snapshots USING INTEGER PRIMARY KEY (rowid=?)",
]
THESE_RUNS = [
    RUN_BY_ID,
    "LIST SUBQUERY 2",
    "SCAN json_each VIRTUAL TABLE INDEX 1:",
    "CORRELATED SCALAR SUBQUERY 1",
    "SEARCH snapshots USING INTEGER PRIMARY KEY (rowid=?)",
]
PLANS = {
    "due_deadlines": ["SEARCH deadlines USING COVERING INDEX deadlines_due (due_us<?)"],
    "next_deadline": ["SEARCH deadlines USING COVERING INDEX deadlines_due ((due_us,job,kind,schedule)>(?,?,?,?))"],
    "remove_deadlines": ["SEARCH deadlines USING PRIMARY KEY (job=? AND kind=? AND schedule=?)"],
    "events": ["SEARCH events USING INTEGER PRIMARY KEY (rowid>?)"],
    "events_backward": ["SEARCH events USING INTEGER PRIMARY KEY (rowid<?)"],
    "events_of_job": ["SEARCH events USING INDEX events_of_jobs (job=? AND number>?)"],
    "events_of_job_backward": ["SEARCH events USING INDEX events_of_jobs (job=? AND number<?)"],
    "sweep_events": ["SEARCH events USING INTEGER PRIMARY KEY (rowid<?)"],
    "live": ["SEARCH jobs USING INDEX live (function=? AND uniq=?)"],
    "kept": ["SEARCH jobs USING INDEX kept (function=? AND uniq=? AND ended_us>?)"],
    "settle": [BY_ID],
    "settle_typical": [BY_ID],
    "assign": [BY_ID],
    "cancel": [BY_ID],
    "redrive": [BY_ID],
    "expire": [BY_ID],
    "find": [BY_ID],
    "find_of": [BY_ID, "CORRELATED SCALAR SUBQUERY 1", "SEARCH functions USING INTEGER PRIMARY KEY (rowid=?)"],
    "held_elsewhere": ["SEARCH jobs USING INDEX queue (state>? AND state<?)"],
    "claim": [BY_ID, "LIST SUBQUERY 1", f"{PARTIAL} queue (state=? AND function=?)"],
    "next_key": [f"{PARTIAL} queue (state=? AND function=? AND priority=? AND key>?)"],
    "ids_of_key": [f"{PARTIAL} queue (state=? AND function=? AND priority=? AND key=?)"],
    "limits_of": ["SEARCH limits USING PRIMARY KEY (namespace=? AND function=?)"],
    "counts_between": ["SEARCH counts USING PRIMARY KEY (function>? AND function<?)"],
    "counts_among": ["SEARCH counts USING PRIMARY KEY (function=? AND state>? AND state<?)", *AMONG],
    "due": [BY_ID, "LIST SUBQUERY 1", f"{COVERING} due (due_us<?)"],
    "late": ["SEARCH jobs USING INDEX expiring (expires_us>? AND expires_us<?)"],
    "sweep_succeeded": [BY_ID, "LIST SUBQUERY 1", f"{PARTIAL} succeeded (ended_us<?)"],
    "sweep_unsuccessful": [BY_ID, "LIST SUBQUERY 1", f"{PARTIAL} unsuccessful (state=? AND ended_us<?)"],
    "schedule": ["SEARCH schedules USING INDEX sqlite_autoindex_schedules_1 (name=?)"],
    "due_schedules": ["SEARCH schedules USING INDEX schedules_due (next_us<?)"],
    "named_schedules": [
        "SEARCH schedules USING INDEX sqlite_autoindex_schedules_1 (name=?)",
        "LIST SUBQUERY 1",
        "SCAN json_each VIRTUAL TABLE INDEX 1:",
    ],
    "next_schedule": ["SEARCH schedules USING COVERING INDEX schedules_due ((next_us,name)>(?,?))"],
    "fires": ["SEARCH fires USING PRIMARY KEY (schedule=? AND fire_us=?)"],
    "unfinished_fires": ["SEARCH fires USING INDEX fires_unfinished (schedule=?)"],
    "remove_fires": ["SEARCH fires USING PRIMARY KEY (schedule=? AND fire_us=?)"],
    "fires_of_jobs": ["SEARCH fires USING INDEX fires_of_job (job=?)"],
    "history": ["SEARCH fires USING PRIMARY KEY (schedule=? AND fire_us<?)"],
    "newest_fires": [
        "SCAN s VIRTUAL TABLE INDEX 1:",
        "SEARCH f USING PRIMARY KEY (schedule=? AND fire_us>? AND fire_us<?)",
        "CORRELATED SCALAR SUBQUERY 1",
        "SEARCH fires USING PRIMARY KEY (schedule=? AND fire_us>? AND fire_us<?)",
    ],
    "oldest_fires": [
        "SCAN s VIRTUAL TABLE INDEX 1:",
        "SEARCH f USING PRIMARY KEY (schedule=? AND fire_us<?)",
        "CORRELATED SCALAR SUBQUERY 1",
        "SEARCH fires USING PRIMARY KEY (schedule=?)",
    ],
    "last_outcomes": [
        "SCAN s VIRTUAL TABLE INDEX 1:",
        "CORRELATED SCALAR SUBQUERY 2",
        "CO-ROUTINE (subquery-1)",
        "SEARCH fires USING PRIMARY KEY (schedule=?)",
        "SCAN (subquery-1)",
    ],
    "stuck_fires": ["SEARCH fires USING INDEX fires_to_mend (standing=?)"],
    "mark": ["SEARCH jobs USING INTEGER PRIMARY KEY (rowid<?)"],
    "list": [
        "SEARCH jobs USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
        "CORRELATED SCALAR SUBQUERY 1",
        "SEARCH functions USING INTEGER PRIMARY KEY (rowid=?)",
    ],
    "mark_tagged": [
        "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)",
        "SCALAR SUBQUERY 1",
        "SEARCH tags USING PRIMARY KEY (namespace=? AND tag=? AND job<?)",
    ],
    "list_tagged": ["SEARCH t USING PRIMARY KEY (namespace=? AND tag=? AND job>? AND job<?)", BY_ID],
    "few_scheduled": ["CO-ROUTINE (subquery-1)", "SCAN jobs USING COVERING INDEX due", "SCAN (subquery-1)"],
    "few_queued": ["CO-ROUTINE (subquery-1)", f"{PARTIAL} queue (state=?)", "SCAN (subquery-1)"],
    "few_queued_of": ["CO-ROUTINE (subquery-1)", f"{PARTIAL} queue (state=? AND function=?)", "SCAN (subquery-1)"],
    "few_unsuccessful": ["CO-ROUTINE (subquery-1)", f"{PARTIAL} unsuccessful (state=?)", "SCAN (subquery-1)"],
    "few_roots": ["CO-ROUTINE (subquery-1)", f"{PARTIAL} roots (state=?)", "SCAN (subquery-1)"],
    "few_roots_of": ["CO-ROUTINE (subquery-1)", f"{PARTIAL} roots (state=? AND function=?)", "SCAN (subquery-1)"],
    "settle_forgotten": [BY_ID],
    "delete": [BY_ID],
    "begun": [BY_ID],
    "take": [BY_ID],
    "pending": ["SEARCH jobs USING INDEX queue (state=? AND function=?)"],
    "waiting": [BY_ID],
    "end_root": [BY_ID],
    "forget_root": [BY_ID],
    "withdraw": [BY_ID],
    "request_stop": [BY_ID],
    "stopping": [BY_ID, "LIST SUBQUERY 1", "SCAN json_each VIRTUAL TABLE INDEX 1:"],
    "is_held": [BY_ID],
    "limits": ["SEARCH limits USING PRIMARY KEY ((namespace,function)>(?,?))"],
    "schedules": ["SEARCH schedules USING INDEX sqlite_autoindex_schedules_1 (name>?)"],
    "operation": ["SEARCH operations USING INTEGER PRIMARY KEY (rowid=?)"],
    "operations": ["SEARCH operations USING INDEX operations_of (namespace=? AND id<?)"],
    "running_operations": ["SCAN operations USING INDEX operations_running"],
    "sweep_operations": [
        "SEARCH operations USING INTEGER PRIMARY KEY (rowid=?)",
        "LIST SUBQUERY 3",
        "MATERIALIZE old",
        "SEARCH o USING INDEX operations_ended (ended_us<?)",
        "CORRELATED SCALAR SUBQUERY 1",
        "SEARCH s USING INDEX sqlite_autoindex_operation_steps_1 (operation=?)",
        "SCAN old",
    ],
    "load_run": [f"{RUN_BY_ID}", "SEARCH snapshots USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN"],
    "load_short_runs": [
        RUN_BY_ID,
        "LIST SUBQUERY 1",
        "SCAN json_each VIRTUAL TABLE INDEX 1:",
        "CORRELATED SCALAR SUBQUERY 2",
        "SEARCH snapshots USING INTEGER PRIMARY KEY (rowid=?)",
    ],
    "whole_histories": ["SEARCH history USING PRIMARY KEY (run=?)", *AMONG],
    "blocks": [
        "SEARCH history USING PRIMARY KEY (run=? AND first>?)",
        "SCALAR SUBQUERY 1",
        "SEARCH history USING PRIMARY KEY (run=? AND first<?)",
    ],
    "open_run": ["SEARCH runs USING COVERING INDEX runs_open (namespace=? AND workflow_id=?)"],
    "last_run": ["SEARCH runs USING INDEX runs_named (namespace=? AND workflow_id=?)"],
    "append_run": [RUN_BY_ID],
    "reschedule_run": [RUN_BY_ID],
    "change_run": [RUN_BY_ID],
    "reject_root": [BY_ID],
    "waiting_named": [
        "SEARCH f USING COVERING INDEX sqlite_autoindex_functions_1 (namespace=?)",
        "SEARCH j USING INDEX live (function=? AND uniq=?)",
    ],
    "last_early": ["SEARCH early_signals USING PRIMARY KEY (job=?)"],
    "early_request": ["SEARCH early_signals USING COVERING INDEX early_requests (job=? AND request=?)"],
    "early_signals": ["SEARCH early_signals USING PRIMARY KEY (job=?)"],
    "next_early": [
        "SEARCH early_signals USING PRIMARY KEY (job>?)",
        "CORRELATED SCALAR SUBQUERY 1",
        "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)",
    ],
    "forget_early": ["SEARCH early_signals USING PRIMARY KEY (job=?)", *AMONG],
    "definitions_of": ["SEARCH definitions USING PRIMARY KEY (namespace=? AND name=?)"],
    "next_builds": ["SEARCH runs USING INDEX runs_parked ((namespace,type,version,builds)>(?,?,?,?))"],
    "parked_runs": ["SEARCH runs USING INDEX runs_parked (namespace=? AND type=? AND version=? AND builds=?)"],
    "count_parked": ["SEARCH runs USING INDEX runs_parked (namespace>?)"],
    "versions": [
        "COMPOUND QUERY",
        "LEFT-MOST SUBQUERY",
        "SCAN definitions",
        "UNION ALL",
        "SEARCH runs USING INDEX runs_parked (namespace>?)",
    ],
    "count_open": ["SEARCH runs USING COVERING INDEX runs_versions (namespace>?)"],
    "open_of_version": ["SEARCH runs USING COVERING INDEX runs_versions (namespace=? AND type=? AND version=?)"],
    "remove_definition": ["SEARCH definitions USING PRIMARY KEY (namespace=? AND name=? AND version=?)"],
    "due_runs": [
        "COMPOUND QUERY",
        "LEFT-MOST SUBQUERY",
        "CO-ROUTINE due",
        "SEARCH runs USING COVERING INDEX runs_due (due_us>? AND due_us<?)",
        "SCAN due",
        "UNION ALL",
        "CO-ROUTINE following",
        "SEARCH runs USING COVERING INDEX runs_due (due_us>?)",
        "SCAN following",
    ],
    "next_run": ["SEARCH runs USING COVERING INDEX runs_due (due_us>?)"],
    "closed_runs": ["SEARCH runs USING INDEX runs_closed (namespace=? AND closed_us>? AND closed_us<?)"],
    "errand_sizes": ["SEARCH errands USING INTEGER PRIMARY KEY (rowid>?)"],
    "errands": ["SEARCH errands USING INTEGER PRIMARY KEY (rowid>?)"],
    "delete_errands": ["SEARCH errands USING INTEGER PRIMARY KEY (rowid=?)", *AMONG],
    "forget_histories": ["SEARCH history USING PRIMARY KEY (run=?)", *AMONG],
    "forget_snapshots": ["SEARCH snapshots USING INTEGER PRIMARY KEY (rowid=?)", *AMONG],
    "forget_runs": [RUN_BY_ID, *AMONG],
    "list_runs": PART_OF_RUNS,
    "list_open_runs": PART_OF_RUNS,
    "list_these_runs": THESE_RUNS,
    "list_these_open_runs": THESE_RUNS,
    "few_named": [
        "COMPOUND QUERY",
        "LEFT-MOST SUBQUERY",
        "SEARCH runs USING COVERING INDEX runs_open (namespace=? AND workflow_id=?)",
        "UNION ALL",
        "CO-ROUTINE few",
        "SEARCH runs USING INDEX runs_named (namespace=? AND workflow_id=?)",
        "SCAN few",
    ],
    "acts_on_object": ["SEARCH audit USING INDEX audit_objects (object=? AND rowid<?)"],
    "few_parked": ["SEARCH runs USING INDEX runs_parked (namespace=?)"],
}


@pytest.fixture(scope="module")
def connection() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    store_file.update_schema(connection, 0)
    return connection


def explain(connection: apsw.Connection, how: str, name: str) -> list[Any]:
    statement = SQL[name]
    numbered = [int(number) for number in re.findall(r"\?(\d+)", statement)]
    values = (1,) * (max(numbered) if numbered else statement.count("?"))
    return list(connection.execute(f"{how} {statement}", values))


def plan(connection: apsw.Connection, name: str) -> list[str]:
    return [row[3] for row in explain(connection, "EXPLAIN QUERY PLAN", name)]


@pytest.mark.parametrize("name", PLANS)
def test_a_statement_uses_its_index(connection: apsw.Connection, name: str) -> None:
    assert plan(connection, name) == PLANS[name]


def test_counts_of_many_functions_are_one_row() -> None:
    connection = apsw.Connection(":memory:")
    store_file.update_schema(connection, 0)
    for number in range(1, 5):
        connection.execute("INSERT INTO functions VALUES (?, 'default', ?)", (number, b"\xff%d" % number))
        connection.execute("INSERT INTO counts VALUES (?, 5, 1, ?)", (number, number % 3))
    assert list(connection.execute(SQL["counts_among"], (5, 5, "[1, 2, 3]"))) == [("[[1,5,1,1],[2,5,1,2]]",)]
    assert list(connection.execute(SQL["counts_among"], (5, 5, "[]"))) == [("[]",)]
    assert list(connection.execute(SQL["counts_between"], (5, 5, 1, 4))) == [("[[2,5,1,2],[4,5,1,1]]",)]
    assert list(connection.execute(SQL["counts_between"], (5, 5, 4, 9))) == [("[]",)]
    assert list(connection.execute(SQL["counts_between"], (0, 3, 0, 9))) == [("[]",)]
    assert list(connection.execute(SQL["page_end"], (1, 1))) == [(3,)]
    assert list(connection.execute(SQL["page_end"], (1, 3))) == []


@pytest.mark.parametrize("name", ["few_queued", "few_queued_of", "few_roots", "ids_of_key", "next_key"])
def test_the_queue_is_read_without_its_rows(connection: apsw.Connection, name: str) -> None:
    steps = [row[1:4] for row in explain(connection, "EXPLAIN", name)]
    ((page,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'jobs'")
    (rows,) = [cursor for step, cursor, opened in steps if step == "OpenRead" and opened == page]
    assert "DeferredSeek" in [step for step, *_ in steps]
    assert not [step for step in steps if step[:2] == ("Column", rows)]


@pytest.mark.parametrize("name", sorted(set(SQL) - {"list_these", "few_scheduled"}))
def test_no_statement_passes_over_or_sorts_all_rows(connection: apsw.Connection, name: str) -> None:
    steps = " / ".join(plan(connection, name))
    assert "SCAN jobs" not in steps
    assert "SCAN fires" not in steps
    assert "SCAN runs" not in steps
    assert "SCAN history" not in steps
    assert "TEMP B-TREE" not in steps


@pytest.mark.parametrize("name", ["next_due", "next_expiry"])
def test_the_next_time_is_the_first_of_an_index(connection: apsw.Connection, name: str) -> None:
    assert " INDEX " in plan(connection, name)[0]


def test_every_statement_of_the_file_is_loaded_whole() -> None:
    own, shared = files("mainspring.engines.sqlite"), files("mainspring.engines.sql")
    names = {one.name for one in (*own.iterdir(), *shared.iterdir()) if one.name.endswith(".sql")}
    assert sorted(SQL_FILES) == sorted(names - {"leaving_runs.sql"}), "those of a command are not for nodes"
    found = [one for name in SQL_FILES for one in (shared / name, own / name) if one.is_file()]
    text = "".join(one.read_text("utf-8") for one in found)
    assert list(SQL) == re.findall(r"^-- name: (\w+)$", text, re.MULTILINE)
    for name, statement in SQL.items():
        assert re.match(r"(SELECT|INSERT|UPDATE|DELETE|WITH) ", statement), name
        assert ";" not in statement
        assert "-- name" not in statement


def test_every_statement_is_used() -> None:
    modules = [
        *files("mainspring.engines.sqlite").iterdir(),
        *files("mainspring.engines.sql").iterdir(),
        files("mainspring.access").joinpath("audit.py"),
    ]  # a query of the audit names its index
    sources = [one.read_text("utf-8") for one in modules if one.name.endswith(".py")]
    for name in SQL:
        assert any(f'"{name}"' in source for source in sources), name
