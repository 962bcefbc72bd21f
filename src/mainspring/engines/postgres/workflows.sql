-- Runs that are open have a table of their own.
-- part: open_runs
runs_open;
-- As in the index of versions: a planner that knows no rows yet must not take it for a workflow id.
-- part: is_open_by_version
closed_us = 0 AND status = 0;

-- The open run of each workflow id of `named`.
-- part: open_of_named
CROSS JOIN LATERAL (
    SELECT id FROM runs_open WHERE status = 0 AND namespace = named.namespace AND workflow_id = named.workflow_id OFFSET 0) AS r;

-- Locks open runs: these, the last runs of the chains of these jobs, and those of these workflow ids. The order of locks prevents
-- deadlocks between nodes. `written` changes with each write of the row. The first row has the value that writes of this
-- transaction leave. Then, jobs that must be held under a term: those that are have negative numbers.
-- name: lock_runs
WITH locked AS MATERIALIZED (
    SELECT id, xmin::text::bigint AS written FROM runs_open
    WHERE id = ANY (ARRAY(
        SELECT unnest($1::bigint[])
        UNION ALL
        SELECT r.id FROM runs_open AS r WHERE r.id <> r.root AND {run_is_last} AND r.root = ANY ($2::bigint[])
        UNION ALL
        SELECT r.id FROM unnest($3::text[], $4::text[]) AS named (namespace, workflow_id)
        {open_of_named}))
    ORDER BY id FOR UPDATE),
held AS MATERIALIZED (
    SELECT id, term FROM jobs WHERE id = ANY ($5::bigint[]) AND term = $6 AND state >= {leased} ORDER BY id FOR UPDATE)
SELECT 0::bigint AS id, pg_current_xact_id()::xid::text::bigint AS written
UNION ALL
SELECT id, written FROM locked
UNION ALL
SELECT -id, term FROM held;

-- Locks those that no other transaction has locked, without waiting.
-- name: try_lock_runs
SELECT id, xmin::text::bigint AS written FROM runs_open WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE SKIP LOCKED;

-- The same of runs whose alarms are due: several nodes may ring them at the same time. `coalesce` keeps planners from reading all due
-- runs. The first row is as of `lock_runs`.
-- name: lock_due_runs
WITH locked AS MATERIALIZED (
    SELECT id, xmin::text::bigint AS written FROM runs_open
    WHERE id = ANY ($1::bigint[]) AND coalesce(due_us <= $2, false) ORDER BY id FOR UPDATE SKIP LOCKED)
SELECT 0::bigint AS id, pg_current_xact_id()::xid::text::bigint AS written
UNION ALL
SELECT id, written FROM locked;

-- name: alarms_of
SELECT id, due_us FROM runs_open WHERE id = ANY ($1::bigint[]);

-- name: still_open
SELECT id FROM runs_open WHERE id = ANY ($1::bigint[]);

-- name: open_runs_named
SELECT named.namespace, named.workflow_id, r.id
FROM unnest($1::text[], $2::text[]) AS named (namespace, workflow_id)
{open_of_named};

-- name: own_number
SELECT pg_current_xact_id()::xid::text::bigint;

-- name: lock_definitions
SELECT FROM locks WHERE number = -4 FOR UPDATE;

-- Until the first workflow is registered, nodes of schema 22 and 23 may share the store. One that begins a term meanwhile waits for
-- this lock.
-- name: lock_needed_version
SELECT FROM migrations WHERE number = 24 AND compatible_from < 24 FOR UPDATE;

-- Not in the statement of the lock, which may have waited for such a node.
-- name: older_node
SELECT FROM nodes WHERE about ->> 'runs' IS DISTINCT FROM 'true' LIMIT 1;

-- name: need_version
UPDATE migrations SET compatible_from = 24 WHERE number = 24;

-- The same of pauses: a node of an earlier version would go on with paused runs.
-- name: lock_pausing_version
SELECT FROM migrations WHERE number = 41 AND compatible_from < 41 FOR UPDATE;

-- name: node_without_pauses
SELECT FROM nodes WHERE about ->> 'pauses' IS DISTINCT FROM 'true' LIMIT 1;

-- name: need_pausing_version
UPDATE migrations SET compatible_from = 41 WHERE number = 41;

-- The same of payloads that are kept apart from events.
-- name: needs_payloads
SELECT FROM migrations WHERE number = 42 AND compatible_from = 42;

-- name: lock_payloads
SELECT FROM migrations WHERE number = 42 AND compatible_from < 42 FOR UPDATE;

-- name: node_without_payloads
SELECT FROM nodes WHERE about ->> 'payloads' IS DISTINCT FROM 'true' LIMIT 1;

-- name: need_payloads
UPDATE migrations SET compatible_from = 42 WHERE number = 42;

-- name: has_errand_turn
SELECT has_turn(-3, 0);

-- Where `now` lies decides on the partition: old ones are dropped whole.
-- name: append_block
INSERT INTO history (run, first, written_us, block)
SELECT run, first, (extract(epoch FROM now()) * 1000000)::bigint, block
FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) AS s (run, first, block);

-- name: append_blocks
WITH changed AS (
    UPDATE runs_open AS r SET ({appended_columns}) = ROW ({s.appended_columns})
    FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[]) AS s ({appended_columns}, id, guard)
    WHERE r.id = ANY (ARRAY[s.id]) AND r.events = s.guard
    RETURNING 1
), added AS (
    INSERT INTO history (run, first, written_us, block)
    SELECT run, first, (extract(epoch FROM now()) * 1000000)::bigint, block
    FROM unnest($7::bigint[], $8::bigint[], $9::bytea[]) AS s (run, first, block)
)
SELECT count(*) FROM changed;

-- A group of decisions about runs that the node has in memory (mainspring.engines.postgres.warm_runs): these runs, as they are
-- presumed to be, and these jobs, which have to be held and for which nobody waits. One row, if all is so; otherwise nothing is written.
-- Each part waits for the one before it: the fence, the locks of runs, those of jobs, the check.
-- name: write_warm
WITH entered AS MATERIALIZED (SELECT enter($1, $2)::text AS fence),
locked AS MATERIALIZED (
    SELECT id, xmin::text::bigint AS written, events FROM runs_open
    WHERE id = ANY ($3::bigint[]) AND (SELECT fence IS NOT NULL FROM entered) ORDER BY id FOR UPDATE),
held AS MATERIALIZED (
    SELECT id FROM jobs
    WHERE id = ANY ($6::bigint[]) AND term = $1 AND state >= {leased} AND waited IS NOT TRUE
        AND (SELECT count(*) FROM locked) = cardinality($3::bigint[])
    ORDER BY id FOR UPDATE),
presumed AS MATERIALIZED (
    SELECT pg_current_xact_id()::xid::text::bigint AS own
    WHERE ARRAY(SELECT written FROM locked ORDER BY id) = $4::bigint[] AND ARRAY(SELECT events FROM locked ORDER BY id) = $5::bigint[]
        AND (SELECT count(*) FROM held) = cardinality($6::bigint[])),
changed AS (
    UPDATE runs_open AS r SET ({rescheduled_columns}) = ROW ({s.rescheduled_columns})
    FROM unnest($8::bigint[], $9::bigint[], $10::bytea[], $11::bigint[], $12::bigint[], $13::bigint[]) AS s ({rescheduled_columns}, id)
    WHERE r.id = ANY (ARRAY[s.id]) AND EXISTS (SELECT FROM presumed)),
added AS (
    INSERT INTO history (run, first, written_us, block)
    SELECT run, first, (extract(epoch FROM now()) * 1000000)::bigint, block
    FROM unnest($14::bigint[], $15::bigint[], $16::bytea[]) AS s (run, first, block)
    WHERE EXISTS (SELECT FROM presumed)),
ended AS (DELETE FROM jobs WHERE id = ANY ($7::bigint[]) AND EXISTS (SELECT FROM presumed)),
saved AS (
    INSERT INTO snapshots (run, history_bytes, state)
    SELECT * FROM unnest($17::bigint[], $18::bigint[], $19::bytea[]) AS s (run, history_bytes, state)
    WHERE EXISTS (SELECT FROM presumed)
    ON CONFLICT (run) DO UPDATE SET history_bytes = excluded.history_bytes, state = excluded.state),
journaled AS (
    INSERT INTO journal (term, number, functions, states, priorities, numbers)
    SELECT $1, $2, $20::int[], $21::smallint[], $22::smallint[], $23::int[] FROM presumed)
SELECT own FROM presumed;

-- name: append_run
UPDATE runs_open AS r SET ({appended_columns}) = ROW ({s.appended_columns})
FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[]) AS s ({appended_columns}, id, guard)
WHERE r.id = ANY (ARRAY[s.id]) AND r.events = s.guard;

-- name: reschedule_run
UPDATE runs_open AS r SET ({rescheduled_columns}) = ROW ({s.rescheduled_columns})
FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
    AS s ({rescheduled_columns}, id, guard)
WHERE r.id = ANY (ARRAY[s.id]) AND r.events = s.guard;

-- A closed run moves to the partition for the time of its close.
-- name: change_run
UPDATE runs AS r SET ({changed_columns}) = ROW ({s.changed_columns})
FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::smallint[], $7::bigint[], $8::bigint[],
    $9::bigint[], $10::text[], $11::bytea[], $12::bigint[], $13::bigint[], $14::bigint[]) AS s ({changed_columns}, id, guard)
WHERE r.closed_us = 0 AND r.id = ANY (ARRAY[s.id]) AND r.events = s.guard;

-- No other run continues it: its status is not CONTINUED_AS_NEW.
-- part: run_is_last
status <> 5;

-- An id is higher than another one only if both are of one node: runs of several nodes are in the order of their closes.
-- name: last_run
SELECT id FROM runs WHERE {run_is_closed} AND {run_is_last} AND namespace = $1 AND workflow_id = $2
ORDER BY closed_us DESC LIMIT 1;

-- The last run of a chain is the only one that no other continues.
-- name: last_link
SELECT id FROM runs WHERE id <> root AND {run_is_last} AND root = $1 AND ($2 = '' OR namespace = $2) LIMIT 1;

-- A waiting job of any function.
-- name: waiting_named
SELECT j.id FROM functions AS f
CROSS JOIN LATERAL (SELECT id, state FROM jobs WHERE function = f.id AND uniq = $2 AND uniq IS NOT NULL OFFSET 0) AS j
WHERE f.namespace = $1 AND j.state < {leased};

-- ---- limits of open runs ----

-- The versions of a workflow, each with the limits of its function. One statement: each begin of runs reads both.
-- name: definitions_and_limits
SELECT {definition_columns}, (SELECT said FROM limits WHERE function = $3), (SELECT version FROM limits WHERE function = $3)
FROM definitions WHERE namespace = $1 AND name = $2;

-- name: limits_of_workflow
SELECT version, said FROM limits WHERE function = $1;

-- The right to begin runs of a workflow with limits, without waiting, and the time.
-- name: hold_places
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM functions WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED;

-- name: roots_of_keys
SELECT key, count(*) FROM jobs
WHERE function = $1 AND key = ANY ($2::bytea[]) AND key IS NOT NULL AND term = -1 GROUP BY key;

-- The keys of all priorities, from key to key; jobs that were stored without a key are not among them.
-- name: pending_keys
WITH RECURSIVE met AS (
    SELECT (SELECT level.key FROM (VALUES (0::smallint), (1::smallint), (2::smallint)) AS p (priority)
        CROSS JOIN LATERAL (
            SELECT key FROM jobs
            WHERE state = 1 AND function = $1 AND priority = p.priority AND key IS NOT NULL AND key > $2
            ORDER BY key LIMIT 1) AS level
        ORDER BY level.key LIMIT 1) AS key
    UNION ALL
    SELECT (SELECT level.key FROM (VALUES (0::smallint), (1::smallint), (2::smallint)) AS p (priority)
        CROSS JOIN LATERAL (
            SELECT key FROM jobs
            WHERE state = 1 AND function = $1 AND priority = p.priority AND key IS NOT NULL AND key > met.key
            ORDER BY key LIMIT 1) AS level
        ORDER BY level.key LIMIT 1)
    FROM met WHERE met.key IS NOT NULL
)
SELECT key FROM met WHERE key IS NOT NULL LIMIT $3;

-- The first jobs of each key and priority. The key is a range, as in `claim_of_keys`.
-- name: first_of_keys
SELECT p.priority, p.place, p.id, w.key, p.options
FROM unnest($2::bytea[], $3::int[]) AS w (key, number)
CROSS JOIN (VALUES (0::smallint), (1::smallint), (2::smallint)) AS level (priority)
CROSS JOIN LATERAL (
    SELECT id, priority, place, options FROM jobs
    WHERE state = 1 AND function = $1 AND priority = level.priority AND key BETWEEN w.key AND w.key AND key IS NOT NULL
    ORDER BY key, place LIMIT w.number FOR UPDATE SKIP LOCKED) AS p;

-- Jobs that were stored without a key, among the first thousand of each priority, as in `claim_of_none`. `IS NOT FALSE` keeps the
-- planner from reading a whole index of pending jobs for each of them.
-- name: first_without_key
SELECT p.priority, p.place, p.id, NULL::bytea, p.options
FROM (VALUES (0::smallint), (1::smallint), (2::smallint)) AS level (priority)
CROSS JOIN LATERAL (
    SELECT id, key FROM jobs WHERE state = 1 AND function = $1 AND priority = level.priority ORDER BY place LIMIT 1000) AS old
CROSS JOIN LATERAL (
    SELECT id, priority, place, options FROM jobs
    WHERE id = ANY (ARRAY[old.id]) AND (state = 1) IS NOT FALSE OFFSET 0 FOR UPDATE SKIP LOCKED) AS p
WHERE old.key IS NULL
LIMIT $2;

-- name: give_empty_key
UPDATE jobs SET key = $2 WHERE id = ANY ($1::bigint[]) AND key IS NULL;

-- name: buckets_of_workflow
SELECT pool, number, per_us, burst, level, updated_us FROM buckets WHERE function = $1 AND pool = ANY ($2::bytea[]);

-- name: save_buckets
INSERT INTO buckets (function, pool, number, per_us, burst, level, updated_us)
SELECT $1, * FROM unnest($2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
ON CONFLICT (function, pool) DO UPDATE SET
    number = excluded.number, per_us = excluded.per_us, burst = excluded.burst, level = excluded.level,
    updated_us = excluded.updated_us;

-- Another node may begin the run of a job at the same time: then a signal belongs to the run.
-- name: lock_waiting
SELECT id FROM jobs WHERE id = ANY ($1::bigint[]) AND state < {leased} ORDER BY id FOR NO KEY UPDATE;

-- The same of several jobs, and of those with some namespaces and uniques.
-- name: lock_waiting_named
SELECT id FROM jobs
WHERE id = ANY (ARRAY(
    SELECT unnest($1::bigint[])
    UNION
    SELECT j.id FROM unnest($2::text[], $3::bytea[]) AS named (namespace, uniq)
    CROSS JOIN LATERAL (SELECT id FROM functions WHERE namespace = named.namespace OFFSET 0) AS f
    CROSS JOIN LATERAL (
        SELECT id, state FROM jobs WHERE function = f.id AND uniq = named.uniq AND uniq IS NOT NULL OFFSET 0) AS j
    WHERE j.state < {leased})) AND state < {leased}
ORDER BY id FOR NO KEY UPDATE;

-- name: next_early
SELECT job, EXISTS (SELECT FROM jobs WHERE id = job) OR EXISTS (SELECT FROM dead WHERE id = job AND attempt = 0) FROM early_signals
WHERE job > $1 ORDER BY job LIMIT 1;

-- Runs and their blocks are forgotten, and blocks are kept beyond the time of their partition, one after the other.
-- name: lock_forgetting
SELECT FROM locks WHERE number = -5 FOR UPDATE;

-- The blocks in other partitions go with these.
-- name: forget_histories
WITH other AS (DELETE FROM history_other WHERE run {among($1)})
DELETE FROM history
WHERE run {among($1)} AND (written_us < 1 OR written_us >= (extract(epoch FROM now()) * 1000000)::bigint - 604800000000);

-- name: forget_steps
DELETE FROM recorded_steps WHERE run {among($1)};

-- name: next_runs
SELECT max(id), array_agg(id) FROM (SELECT id FROM runs WHERE id > $1 ORDER BY id LIMIT $2) AS following;

-- ---- signals that users send in transactions of their own ----

-- part: sent
number, namespace, run, name, request, input;

-- The first signals, up to a number and up to a number of bytes; the first one always. `length` reads no value. Those behind one
-- that is set aside for its run wait with it, so that none overtakes another.
-- name: sent_signals
WITH first AS MATERIALIZED (
    SELECT number, length(input) AS size FROM sent_signals
    WHERE (namespace, run) NOT IN (SELECT namespace, run FROM sent_signals WHERE number = ANY ($1::bigint[]))
    ORDER BY number LIMIT $2
)
SELECT {sent} FROM sent_signals WHERE number = ANY (ARRAY(
    SELECT number FROM (SELECT number, size, sum(size) OVER (ORDER BY number) AS total FROM first) AS added
    WHERE total - size = 0 OR total <= $3)) ORDER BY number;

-- name: lock_sent
SELECT number FROM sent_signals WHERE number = ANY ($1::bigint[]) ORDER BY number FOR UPDATE;

-- name: submitted
SELECT coalesce((SELECT id FROM inbox ORDER BY id LIMIT 1), 0), coalesce((SELECT id FROM inbox ORDER BY id DESC LIMIT 1), 0);

-- name: forget_sent
DELETE FROM sent_signals WHERE number = ANY ($1::bigint[]);

-- Of refused ones, the newest 1,000 are kept.
-- name: refuse_signals
WITH gone AS (
    DELETE FROM refused_signals WHERE number <= (SELECT max(number) - 1000 FROM refused_signals)
)
INSERT INTO refused_signals (reason, {sent})
SELECT reason, {sent}
FROM unnest($1::bigint[], $2::text[]) AS s (of, reason)
CROSS JOIN LATERAL (SELECT {sent} FROM sent_signals WHERE number = ANY (ARRAY[of])) AS sent;

-- name: refused_signals
SELECT count(*), min(at_us), (SELECT reason FROM refused_signals ORDER BY number DESC LIMIT 1) FROM refused_signals;
