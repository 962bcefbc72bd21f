"""The migrations give exactly the schema in this file, and a file of another version is updated or refused."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING

import apsw
import pytest
from tests.conformance.suite.driver import Store
from tests.conformance.suite.scheduling import Scheduling
from tests.engines import sqlite_engine

from mainspring.engines.sqlite import store_file
from mainspring.errors import StoreForeignError
from mainspring.ids import NodeId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("migrations")
Column = tuple[str, str, int, str | None, int]
GOLDEN: dict[str, list[Column]] = {
    "audit": [
        ("number", "INTEGER", 0, None, 1),
        ("at_us", "INTEGER", 1, None, 0),
        ("namespace", "TEXT", 1, None, 0),
        ("what", "TEXT", 1, None, 0),
        ("act", "BLOB", 1, None, 0),
        ("object", "INTEGER", 0, None, 0),
    ],
    "event_series": [
        ("key", "BLOB", 1, None, 1),
        ("last_us", "INTEGER", 1, None, 0),
        ("number", "INTEGER", 1, None, 0),
        ("before_us", "INTEGER", 1, None, 0),
    ],
    "deadlines": [
        ("job", "INTEGER", 1, None, 1),
        ("kind", "INTEGER", 1, None, 2),
        ("schedule", "TEXT", 1, None, 3),
        ("due_us", "INTEGER", 1, None, 0),
    ],
    "event_ends": [
        ("swept", "INTEGER", 1, None, 0),
        ("changes", "INTEGER", 1, None, 0),
        ("given", "INTEGER", 1, "0", 0),
    ],
    "events": [
        ("number", "INTEGER", 0, None, 1),
        ("at_us", "INTEGER", 1, None, 0),
        ("namespace", "TEXT", 1, None, 0),
        ("type", "TEXT", 1, None, 0),
        ("function", "TEXT", 1, None, 0),
        ("subject", "TEXT", 1, None, 0),
        ("job", "INTEGER", 1, None, 0),
        ("fields", "BLOB", 1, None, 0),
    ],
    "interests": [
        ("id", "TEXT", 1, None, 1),
        ("until_us", "INTEGER", 1, None, 0),
        ("interest", "BLOB", 1, None, 0),
        ("since", "INTEGER", 1, "0", 0),
        ("place", "INTEGER", 1, "0", 0),
    ],
    "buckets": [
        ("function", "INTEGER", 1, None, 1),
        ("pool", "BLOB", 1, None, 2),
        ("number", "INTEGER", 1, None, 0),
        ("per_us", "INTEGER", 1, None, 0),
        ("burst", "INTEGER", 1, None, 0),
        ("level", "INTEGER", 1, None, 0),
        ("updated_us", "INTEGER", 1, None, 0),
    ],
    "completions": [
        ("digest", "BLOB", 1, None, 1),
        ("job", "INTEGER", 1, None, 0),
        ("look_us", "INTEGER", 1, None, 0),
        ("version", "INTEGER", 1, None, 0),
        ("content", "BLOB", 1, None, 0),
    ],
    "resources": [
        ("name", "TEXT", 1, None, 1),
        ("version", "INTEGER", 1, None, 0),
        ("definition", "BLOB", 1, None, 0),
    ],
    "works": [
        ("job", "INTEGER", 1, None, 1),
        ("number", "INTEGER", 1, None, 2),
        ("function", "BLOB", 1, None, 0),
        ("status", "INTEGER", 1, None, 0),
        ("key", "TEXT", 1, None, 0),
        ("meta", "TEXT", 1, None, 0),
        ("payload", "BLOB", 1, None, 0),
        ("attempt", "INTEGER", 1, None, 0),
        ("since_us", "INTEGER", 1, None, 0),
        ("canceller", "INTEGER", 1, None, 0),
        ("ended_us", "INTEGER", 1, None, 0),
    ],
    "successors": [
        ("job", "INTEGER", 1, None, 1),
        ("predecessor", "INTEGER", 1, None, 0),
        ("due_us", "INTEGER", 1, None, 0),
        ("stops", "INTEGER", 1, None, 0),
    ],
    "grants": [
        ("resource", "TEXT", 1, None, 1),
        ("number", "INTEGER", 1, None, 0),
    ],
    "holds": [
        ("resource", "TEXT", 1, None, 1),
        ("item", "TEXT", 1, None, 2),
        ("kind", "INTEGER", 1, None, 3),
        ("holder", "INTEGER", 1, None, 4),
        ("term", "INTEGER", 1, None, 5),
        ("turn", "INTEGER", 1, None, 0),
        ("units", "INTEGER", 1, None, 0),
        ("number", "INTEGER", 1, None, 0),
        ("since_us", "INTEGER", 1, None, 0),
        ("until_us", "INTEGER", 1, None, 0),
    ],
    "instances": [
        ("resource", "TEXT", 1, None, 1),
        ("name", "TEXT", 1, None, 2),
        ("instance", "BLOB", 1, None, 0),
    ],
    "requests": [
        ("resource", "TEXT", 1, None, 1),
        ("kind", "INTEGER", 1, None, 2),
        ("holder", "INTEGER", 1, None, 3),
        ("term", "INTEGER", 1, None, 4),
        ("turn", "INTEGER", 1, None, 0),
        ("priority", "INTEGER", 1, None, 0),
        ("since_us", "INTEGER", 1, None, 0),
        ("until_us", "INTEGER", 1, None, 0),
        ("function", "BLOB", 1, None, 0),
        ("lines", "BLOB", 1, None, 0),
        ("limit_us", "INTEGER", 1, "0", 0),
    ],
    "subscriptions": [
        ("id", "TEXT", 1, None, 1),
        ("number", "INTEGER", 1, None, 0),
        ("version", "INTEGER", 1, None, 0),
        ("failures", "INTEGER", 1, None, 0),
        ("definition", "BLOB", 1, None, 0),
    ],
    "deliveries": [
        ("subscription", "TEXT", 1, None, 1),
        ("subject", "INTEGER", 1, None, 2),
        ("number", "INTEGER", 1, None, 3),
        ("job", "INTEGER", 1, None, 0),
        ("depth", "INTEGER", 1, None, 0),
        ("payload", "BLOB", 1, None, 0),
    ],
    "counts": [
        ("function", "INTEGER", 1, None, 1),
        ("state", "INTEGER", 1, None, 2),
        ("priority", "INTEGER", 1, None, 3),
        ("number", "INTEGER", 1, None, 0),
    ],
    "credentials": [
        ("digest", "BLOB", 1, None, 1),
        ("kind", "TEXT", 1, None, 0),
        ("token", "TEXT", 1, None, 0),
        ("expires_us", "INTEGER", 1, None, 0),
        ("used_us", "INTEGER", 1, None, 0),
        ("data", "BLOB", 1, None, 0),
    ],
    "revocations": [("number", "INTEGER", 1, None, 0)],
    "definitions": [
        ("namespace", "TEXT", 1, None, 1),
        ("name", "TEXT", 1, None, 2),
        ("version", "TEXT", 1, None, 3),
        ("definition", "BLOB", 1, None, 0),
    ],
    "declarations": [
        ("app", "TEXT", 1, None, 1),
        ("digest", "BLOB", 1, None, 2),
        ("first_seen_us", "INTEGER", 1, None, 0),
        ("last_seen_us", "INTEGER", 1, None, 0),
    ],
    "early_signals": [
        ("job", "INTEGER", 1, None, 1),
        ("number", "INTEGER", 1, None, 2),
        ("bytes", "INTEGER", 1, None, 0),
        ("request", "INTEGER", 1, None, 0),
        ("name", "TEXT", 1, None, 0),
        ("input", "BLOB", 1, None, 0),
    ],
    "errands": [("number", "INTEGER", 0, None, 1), ("errand", "BLOB", 1, None, 0)],
    "fires": [
        ("schedule", "TEXT", 1, None, 1),
        ("fire_us", "INTEGER", 1, None, 2),
        ("standing", "INTEGER", 1, None, 0),
        ("job", "INTEGER", 0, None, 0),
        ("fire", "BLOB", 1, None, 0),
    ],
    "forgotten": [("schedule", "TEXT", 1, None, 1), ("until_us", "INTEGER", 1, None, 0)],
    "functions": [("id", "INTEGER", 0, None, 1), ("namespace", "TEXT", 1, None, 0), ("name", "BLOB", 1, None, 0)],
    "jobs": [
        ("id", "INTEGER", 0, None, 1),
        ("function", "INTEGER", 1, None, 0),
        ("state", "INTEGER", 1, None, 0),
        ("priority", "INTEGER", 1, None, 0),
        ("uniq", "BLOB", 0, None, 0),
        ("keep", "INTEGER", 0, None, 0),
        ("created_us", "INTEGER", 1, None, 0),
        ("due_us", "INTEGER", 1, "0", 0),
        ("expires_us", "INTEGER", 1, "0", 0),
        ("started_us", "INTEGER", 1, "0", 0),
        ("ended_us", "INTEGER", 1, "0", 0),
        ("term", "INTEGER", 1, "0", 0),
        ("attempt", "INTEGER", 1, "0", 0),
        ("suspects", "INTEGER", 1, "0", 0),
        ("input_size", "INTEGER", 1, "0", 0),
        ("output_size", "INTEGER", 1, "0", 0),
        ("options", "BLOB", 0, None, 0),
        ("payload", "BLOB", 0, None, 0),
        ("result", "BLOB", 0, None, 0),
        ("error", "BLOB", 0, None, 0),
        ("key", "BLOB", 0, None, 0),
        ("stopping", "BLOB", 0, None, 0),
        ("attempts", "TEXT", 0, None, 0),
    ],
    "history": [
        ("run", "INTEGER", 1, None, 1),
        ("first", "INTEGER", 1, None, 2),
        ("block", "BLOB", 1, None, 0),
    ],
    "joins": [
        ("child", "TEXT", 1, None, 1),
        ("fire_us", "INTEGER", 1, None, 2),
        ("parents_left", "INTEGER", 1, None, 0),
        ("stopped", "INTEGER", 1, None, 0),
    ],
    "limits": [
        ("namespace", "TEXT", 1, None, 1),
        ("function", "BLOB", 1, None, 2),
        ("version", "INTEGER", 1, None, 0),
        ("said", "BLOB", 1, None, 0),
    ],
    "replies": [
        ("key", "BLOB", 1, None, 1),
        ("request", "BLOB", 1, None, 0),
        ("at_us", "INTEGER", 1, None, 0),
        ("reply", "BLOB", 0, None, 0),
    ],
    "series": [
        ("namespace", "TEXT", 1, None, 1),
        ("function", "BLOB", 1, None, 2),
        ("step", "INTEGER", 1, None, 3),
        ("at", "INTEGER", 1, None, 4),
        ("term", "INTEGER", 1, None, 5),
        ("bucket", "BLOB", 1, None, 0),
    ],
    "payloads": [
        ("run", "INTEGER", 1, None, 1),
        ("event", "INTEGER", 1, None, 2),
        ("data", "BLOB", 1, None, 0),
    ],
    "job_values": [
        ("job", "INTEGER", 1, None, 1),
        ("name", "TEXT", 1, None, 2),
        ("attempt", "INTEGER", 1, None, 0),
        ("number", "INTEGER", 1, None, 0),
        ("at_us", "INTEGER", 1, None, 0),
        ("value", "BLOB", 1, None, 0),
    ],
    "job_streams": [
        ("job", "INTEGER", 1, None, 1),
        ("name", "TEXT", 1, None, 2),
        ("items", "INTEGER", 1, None, 0),
        ("bytes", "INTEGER", 1, None, 0),
        ("part", "INTEGER", 1, None, 0),
        ("writer", "INTEGER", 1, None, 0),
        ("seen", "INTEGER", 1, None, 0),
        ("refused", "INTEGER", 1, None, 0),
        ("at_us", "INTEGER", 1, None, 0),
    ],
    "stream_blocks": [
        ("job", "INTEGER", 1, None, 1),
        ("name", "TEXT", 1, None, 2),
        ("first", "INTEGER", 1, None, 3),
        ("length", "INTEGER", 1, None, 0),
        ("attempt", "INTEGER", 1, None, 0),
        ("part", "INTEGER", 1, None, 0),
        ("at_us", "INTEGER", 1, None, 0),
        ("items", "BLOB", 1, None, 0),
    ],
    "logs": [
        ("id", "INTEGER", 0, None, 1),
        ("job", "INTEGER", 1, None, 0),
        ("namespace", "TEXT", 1, None, 0),
        ("function", "BLOB", 1, None, 0),
        ("attempt", "INTEGER", 1, None, 0),
        ("delivery_us", "INTEGER", 1, None, 0),
        ("first", "INTEGER", 1, None, 0),
        ("lines", "INTEGER", 1, None, 0),
        ("levels", "INTEGER", 1, None, 0),
        ("body", "BLOB", 1, None, 0),
    ],
    "runs": [
        ("id", "INTEGER", 0, None, 1),
        ("root", "INTEGER", 1, None, 0),
        ("namespace", "TEXT", 1, None, 0),
        ("workflow_id", "TEXT", 1, None, 0),
        ("type", "TEXT", 1, None, 0),
        ("version", "TEXT", 1, None, 0),
        ("status", "INTEGER", 1, None, 0),
        ("started_us", "INTEGER", 1, None, 0),
        ("closed_us", "INTEGER", 1, None, 0),
        ("events", "INTEGER", 1, None, 0),
        ("history_bytes", "INTEGER", 1, None, 0),
        ("input_size", "INTEGER", 1, None, 0),
        ("output_size", "INTEGER", 1, None, 0),
        ("due_us", "INTEGER", 0, None, 0),
        ("about", "BLOB", 0, None, 0),
        ("decision", "INTEGER", 1, None, 0),
        ("slot", "INTEGER", 1, None, 0),
        ("parked_us", "INTEGER", 0, None, 0),
        ("builds", "TEXT", 1, None, 0),
        ("parking", "BLOB", 0, None, 0),
        ("paused_us", "INTEGER", 0, None, 0),
    ],
    "operation_steps": [
        ("operation", "INTEGER", 1, None, 1),
        ("revision", "INTEGER", 1, None, 2),
        ("jobs", "BLOB", 1, None, 0),
    ],
    "operations": [
        ("id", "INTEGER", 0, None, 1),
        ("namespace", "TEXT", 1, None, 0),
        ("status", "INTEGER", 1, None, 0),
        ("term", "INTEGER", 1, None, 0),
        ("revision", "INTEGER", 1, None, 0),
        ("created_us", "INTEGER", 1, None, 0),
        ("ended_us", "INTEGER", 1, None, 0),
        ("spec", "BLOB", 1, None, 0),
        ("progress", "BLOB", 1, None, 0),
    ],
    "schedules": [
        ("id", "INTEGER", 0, None, 1),
        ("name", "TEXT", 1, None, 0),
        ("next_us", "INTEGER", 0, None, 0),
        ("queued", "INTEGER", 1, None, 0),
        ("version", "INTEGER", 1, None, 0),
        ("schedule", "BLOB", 1, None, 0),
        ("state", "BLOB", 1, None, 0),
    ],
    "snapshots": [
        ("run", "INTEGER", 0, None, 1),
        ("history_bytes", "INTEGER", 1, None, 0),
        ("state", "BLOB", 1, None, 0),
    ],
    "tags": [("namespace", "TEXT", 1, None, 1), ("tag", "TEXT", 1, None, 2), ("job", "INTEGER", 1, None, 3)],
    "terms": [("term", "INTEGER", 0, None, 1), ("node", "TEXT", 1, None, 0), ("ended", "INTEGER", 1, "1", 0)],
}
INDEXES = {
    "audit_namespaces": "CREATE INDEX audit_namespaces ON audit (namespace, number)",
    "audit_objects": "CREATE INDEX audit_objects ON audit (object)",
    "audit_times": "CREATE INDEX audit_times ON audit (at_us)",
    "audit_whats": "CREATE INDEX audit_whats ON audit (what, number)",
    "credential_ends": "CREATE INDEX credential_ends ON credentials (expires_us) WHERE kind <> 'ms_'",
    "credential_sessions": "CREATE INDEX credential_sessions ON credentials (token) WHERE kind = 'mss_'",
    "credential_tokens": "CREATE UNIQUE INDEX credential_tokens ON credentials (token) WHERE kind = 'ms_'",
    "due": "CREATE INDEX due ON jobs (due_us) WHERE state = 0",
    "early_requests": "CREATE UNIQUE INDEX early_requests ON early_signals (job, request) WHERE request <> 0",
    "expiring": "CREATE INDEX expiring ON jobs (expires_us) WHERE expires_us > 0 AND state < 2 AND attempt = 0",
    "fires_of_job": "CREATE INDEX fires_of_job ON fires (job) WHERE standing BETWEEN 1 AND 2",
    "fires_to_mend": "CREATE INDEX fires_to_mend ON fires (standing) WHERE standing BETWEEN 2 AND 3",
    "fires_unfinished": "CREATE INDEX fires_unfinished ON fires (schedule, fire_us) WHERE standing < 4",
    "kept": "CREATE INDEX kept ON jobs (function, uniq, ended_us) WHERE keep = 1 AND state = 4",
    "live": "CREATE UNIQUE INDEX live ON jobs (function, uniq) WHERE uniq IS NOT NULL AND state < 4",
    "operations_ended": "CREATE INDEX operations_ended ON operations (ended_us) WHERE status > 0",
    "operations_of": "CREATE INDEX operations_of ON operations (namespace, id)",
    "operations_running": "CREATE INDEX operations_running ON operations (id) WHERE status = 0",
    "queue": "CREATE INDEX queue ON jobs (state, function, priority, key) WHERE state BETWEEN 1 AND 3 AND term >= 0",
    "replies_old": "CREATE INDEX replies_old ON replies (at_us)",
    "roots": "CREATE INDEX roots ON jobs (state, function, key) WHERE term < 0",
    "series_old": "CREATE INDEX series_old ON series (step, at)",
    "logs_job": "CREATE INDEX logs_job ON logs (job)",
    "runs_closed": "CREATE INDEX runs_closed ON runs (namespace, closed_us) WHERE status > 0",
    "runs_due": "CREATE INDEX runs_due ON runs (due_us) WHERE due_us IS NOT NULL",
    "runs_links": "CREATE INDEX runs_links ON runs (root, id) WHERE id <> root",
    "runs_versions": "CREATE INDEX runs_versions ON runs (namespace, type, version) WHERE status = 0",
    "runs_named": "CREATE INDEX runs_named ON runs (namespace, workflow_id, id) WHERE status > 0",
    "runs_open": "CREATE UNIQUE INDEX runs_open ON runs (namespace, workflow_id) WHERE status = 0",
    "runs_parked": "CREATE INDEX runs_parked ON runs (namespace, type, version, builds) WHERE parked_us IS NOT NULL",
    "schedules_due": "CREATE INDEX schedules_due ON schedules (next_us, name) WHERE next_us IS NOT NULL",
    "schedules_queued": "CREATE INDEX schedules_queued ON schedules (name) WHERE queued > 0",
    "succeeded": "CREATE INDEX succeeded ON jobs (ended_us) WHERE state = 4 AND term >= 0",
    "deliveries_by_job": "CREATE INDEX deliveries_by_job ON deliveries (job) WHERE job > 0",
    "holds_of": "CREATE INDEX holds_of ON holds (holder)",
    "completions_of": "CREATE INDEX completions_of ON completions (job)",
    "completions_due": "CREATE INDEX completions_due ON completions (look_us)",
    "requests_of": "CREATE INDEX requests_of ON requests (holder)",
    "deadlines_due": "CREATE INDEX deadlines_due ON deadlines (due_us)",
    "events_of_jobs": "CREATE INDEX events_of_jobs ON events (job, number) WHERE job > 0",
    "tags_of_job": "CREATE INDEX tags_of_job ON tags (job)",
    "works_under_way": "CREATE INDEX works_under_way ON works (status)",
    "unsuccessful": "CREATE INDEX unsuccessful ON jobs (state, ended_us) WHERE state > 4 AND term >= 0",
}


def deliver(then: object) -> None:
    raise AssertionError("nothing is committed here")


MORE = "CREATE INDEX more ON jobs (more) WHERE state = 1"


def assert_golden(
    path: Path,
    number: int = store_file.SCHEMA_VERSION,
    columns: Mapping[str, Column] = MappingProxyType({}),
    indexes: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Assert that a file has the schema that is written here, with one more column of some tables, and more indexes."""
    connection = apsw.Connection(str(path))
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")]
    found = {
        table: [row[1:] for row in connection.execute(f"SELECT * FROM pragma_table_info('{table}')")]
        for table in tables
    }
    found_indexes = dict(
        connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql NOT NULL")
    )
    triggers = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]
    strict = list(connection.execute("SELECT name, strict FROM pragma_table_list WHERE schema = 'main'"))
    ((version,),) = connection.execute("PRAGMA user_version")
    ((application,),) = connection.execute("PRAGMA application_id")
    ((mode,),) = connection.execute("PRAGMA journal_mode")
    connection.close()
    assert found == GOLDEN | {table: [*GOLDEN[table], column] for table, column in columns.items()}
    assert found_indexes == {**INDEXES, **indexes}
    assert triggers == ["untag"]
    assert {name for name, is_strict in strict if is_strict} == set(GOLDEN)
    assert (version, application, mode) == (number, store_file.APPLICATION_ID, "wal")


def with_version(path: Path, version: int) -> None:
    """Create a store, and give it another number of its schema."""
    store_file.migrate_file(path)
    connection = apsw.Connection(str(path))
    connection.execute(f"PRAGMA user_version={version}").fetchall()
    connection.close()


def test_a_new_file_has_the_golden_schema(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    engine = sqlite_engine(path)
    asyncio.run(engine.open(NodeId("n1"), deliver))
    asyncio.run(engine.close())
    assert_golden(path)


def test_there_is_a_migration_to_every_version() -> None:
    names = sorted(file.name for file in store_file.MIGRATIONS.iterdir())
    assert names == [f"{number:04}.sql" for number in range(store_file.FIRST_SCHEMA, store_file.SCHEMA_VERSION + 1)]


def test_a_migration_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.db"

    def broken(connection: apsw.Connection, version: int) -> None:
        connection.execute("CREATE TABLE half (done INTEGER)")
        raise RuntimeError("the lights went out")

    with monkeypatch.context() as patch:
        patch.setattr(store_file, "update_schema", broken)
        with pytest.raises(RuntimeError):
            asyncio.run(sqlite_engine(path).open(NodeId("n1"), deliver))
    test_a_new_file_has_the_golden_schema(tmp_path)


def test_a_newer_schema_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with_version(path, store_file.SCHEMA_VERSION + 1)
    before = path.read_bytes()
    with pytest.raises(StoreForeignError, match="newer Mainspring"):
        asyncio.run(sqlite_engine(path).open(NodeId("n1"), deliver))
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", [1, store_file.FIRST_SCHEMA - 1])
def test_a_schema_before_the_first_file_is_refused_untouched(tmp_path: Path, version: int) -> None:
    path = tmp_path / "jobs.db"
    with_version(path, version)
    before = path.read_bytes()
    with pytest.raises(StoreForeignError, match=f"has schema {version}, .*`mainspring migrate` of an earlier version"):
        asyncio.run(sqlite_engine(path).open(NodeId("n1"), deliver))
    assert path.read_bytes() == before


def test_a_file_of_the_first_schema_is_brought_up_to_date(tmp_path: Path, upgrade: Callable[[], int]) -> None:
    path = tmp_path / "jobs.db"
    store = Store(lambda: sqlite_engine(path))
    store.submitted(payload=b"p")
    store.close()
    number = upgrade()
    store = Store(lambda: sqlite_engine(path))
    try:
        (job,) = store.claim()
        assert job.payload == b"p"
        scheduling = Scheduling(lambda: sqlite_engine(path), store)
        scheduling.add("a")
        scheduling.fire()
        scheduling.run("a")
        assert scheduling.outcomes("a") == ["succeeded"]
        store.counts()
    finally:
        store.close()
    assert_golden(path, number, {"jobs": ("more", "INTEGER", 1, "7", 0)}, {"more": MORE})


def test_a_new_file_gets_all_migrations(tmp_path: Path, upgrade: Callable[[], int]) -> None:
    number = upgrade()
    assert store_file.migrate_file(tmp_path / "jobs.db") == list(range(store_file.FIRST_SCHEMA, number + 1))
    assert_golden(tmp_path / "jobs.db", number, {"jobs": ("more", "INTEGER", 1, "7", 0)}, {"more": MORE})
