"""The migrations create exactly the schema of the jobs' tables that is written here."""

from __future__ import annotations

import asyncio

import pytest

from .a_fleet import node, session

COLUMNS = {
    "aliases": "id bigint, job_id bigint, created_us bigint",
    "dead": "id bigint, place bigint, ended_us bigint, created_us bigint, term bigint, due_us bigint?, expires_us bigint?,"
    " started_us bigint?, function integer, attempt integer, suspects integer, input_size integer, state smallint,"
    " priority smallint, slot smallint, keep boolean?, foreground boolean?, uniq bytea?, options bytea?, error bytea?,"
    " payload bytea, attempts bytea?",
    "ended": "id bigint, ended_us bigint, created_us bigint, term bigint, due_us bigint?, expires_us bigint?,"
    " started_us bigint?, function integer, attempt integer, suspects integer, input_size integer, output_size integer,"
    " priority smallint, keep boolean?, foreground boolean?, uniq bytea?, options bytea?, error bytea?, result bytea?,"
    " payload bytea?, attempts bytea?",
    "inbox": "id bigint, namespace text, function bytea, uniq bytea?, priority smallint, created_us bigint, due_us bigint,"
    " expires_us bigint, options bytea?, payload bytea",
    "jobs": "id bigint, place bigint, created_us bigint, term bigint, due_us bigint?, expires_us bigint?, started_us bigint?,"
    " ended_us bigint?, function integer, attempt integer, suspects integer, input_size integer, state smallint,"
    " priority smallint, slot smallint, keep boolean?, foreground boolean?, waited boolean?, uniq bytea?, options bytea?,"
    " error bytea?, payload bytea, key bytea?, attempts bytea?, stopping bytea?",
    "retired": "name text, block bigint",
    "tags": "namespace text, tag text, job bigint, created_us bigint",
    "waits": "job_id bigint, term bigint",
}
INDEXES = {
    "aliases_of": "aliases USING btree (job_id)",
    "aliases_pkey": "aliases USING btree (id) UNIQUE",
    "aliases_time": "aliases USING btree (created_us)",
    "dead_id": "dead USING btree (id)",
    "dead_roots": "dead USING btree (id) WHERE (term < 0)",
    "dead_time": "dead USING btree (state, ended_us)",
    "due": "jobs USING btree (due_us, id) WHERE (state = 0)",
    "ended_id": "ended USING btree (id)",
    "ended_kept": "ended USING btree (function, uniq, ended_us, id) WHERE keep",
    "ended_roots": "ended USING btree (id) WHERE (term < 0)",
    "expiring": "jobs USING btree (expires_us, id) WHERE ((expires_us > 0) AND (state < 2) AND (attempt = 0))",
    "held": "jobs USING btree (term) WHERE (state = ANY (ARRAY[2, 3]))",
    "inbox_pkey": "inbox USING btree (id) UNIQUE",
    "jobs_pkey": "jobs USING btree (id) UNIQUE",
    "live": "jobs USING btree (function, uniq) WHERE (uniq IS NOT NULL) UNIQUE",
    "queue": "jobs USING btree (function, priority, place) WHERE (state = 1)",
    "queue_by_key": "jobs USING btree (function, priority, key, place) WHERE ((state = 1) AND (key IS NOT NULL))",
    "roots_by_key": "jobs USING btree (function, key) WHERE ((term = '-1'::integer) AND (key IS NOT NULL))",
    "retired_pkey": "retired USING btree (name) UNIQUE",
    "tags_pkey": "tags USING btree (namespace, tag, job) UNIQUE",
    "waits_of": "waits USING btree (term)",
    "waits_pkey": "waits USING btree (job_id, term) UNIQUE",
}


@pytest.mark.usefixtures("migrations")
def test_the_migrations_make_the_golden_schema(database: str) -> None:
    async def test() -> None:
        async with node(database), session(database) as other:
            columns: dict[str, list[str]] = {table: [] for table in COLUMNS}
            for table, column, kind, nullable in await other.fetch(
                "SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns"
                " WHERE table_schema = 'mainspring' AND table_name = ANY ($1) ORDER BY ordinal_position",
                list(COLUMNS),
            ):
                columns[table].append(f"{column} {kind}{'?' if nullable == 'YES' else ''}")
            assert {table: ", ".join(found) for table, found in columns.items()} == COLUMNS
            indexes = {}
            for name, definition in await other.fetch(
                "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'mainspring' AND tablename = ANY ($1)",
                list(COLUMNS),
            ):
                unique = " UNIQUE" if definition.startswith("CREATE UNIQUE") else ""
                indexes[name] = definition.partition(" ON ")[2].replace("ONLY ", "").replace("mainspring.", "") + unique
            assert indexes == INDEXES
            # A payload is not compressed.
            storage = "SELECT attstorage::text FROM pg_attribute WHERE attrelid = $1::regclass AND attname = 'payload'"
            for table in ("jobs", "inbox"):
                assert await other.fetchval(storage, table) == "e"

    asyncio.run(test())
