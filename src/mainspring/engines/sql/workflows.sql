-- Runs of workflows, open and closed, with their histories, snapshots and errands, and early signals. An engine names the table
-- of its open runs, `open_runs`; `runs` has all.

-- Most changes touch no column that has an index.
-- part: appended_columns
events, history_bytes, about, decision;
-- part: rescheduled_columns
{appended_columns}, due_us;
-- part: changed_columns
{rescheduled_columns}, status, closed_us, output_size, parked_us, builds, parking, paused_us;
-- part: run_columns
id, root, namespace, workflow_id, type, version, slot, started_us, input_size, {changed_columns};

-- mainspring.workflows.model.Status
-- part: run_is_open
status = 0;
-- part: run_is_closed
status > 0;

-- name: load_run
SELECT {run_columns}, snapshot_bytes, state
FROM runs LEFT JOIN (SELECT run, history_bytes AS snapshot_bytes, state FROM snapshots) AS snapshot ON run = id
WHERE id = $1 AND ($2 = '' OR namespace = $2);

-- name: run_of_namespace
SELECT id FROM runs WHERE id = $1 AND ($2 = '' OR namespace = $2);

-- Many runs at once, each row in a quarter of the time. The sign, and the subquery in place of NOT EXISTS, keep planners from reading
-- all open runs or all snapshots.
-- name: load_short_runs
SELECT {run_columns} FROM {open_runs}
WHERE id {among($1)} AND +{run_is_open} AND (SELECT run FROM snapshots WHERE run = id) IS NULL;

-- name: whole_histories
SELECT run, block FROM history WHERE run {among($1)} ORDER BY run, first;

-- name: payloads
SELECT event, data FROM payloads WHERE run = $1 AND event {among($2)};

-- name: add_payload
INSERT INTO payloads (run, event, data) {rows(bigint, bigint, bytea)};

-- name: forget_payloads
DELETE FROM payloads WHERE run {among($1)};

-- name: job_options
SELECT id, options FROM jobs WHERE id {among($1)} AND options IS NOT NULL;

-- name: blocks
SELECT block FROM history
WHERE run = $1 AND first >= coalesce((SELECT max(first) FROM history WHERE run = $1 AND first <= $2), 1) ORDER BY first LIMIT $3;

-- name: open_run
SELECT id FROM {open_runs} {index(runs_open)} WHERE {run_is_open} AND namespace = $1 AND workflow_id = $2;

-- name: new_run
INSERT INTO runs ({run_columns})
{rows(bigint, bigint, text, text, text, text, bigint, bigint, bigint,
    bigint, bigint, bytea, bigint, bigint, int, bigint, bigint, bigint, text, bytea, bigint)};

-- name: save_snapshot
INSERT INTO snapshots (run, history_bytes, state) {rows(bigint, bigint, bytea)}
ON CONFLICT (run) DO UPDATE SET history_bytes = excluded.history_bytes, state = excluded.state;

-- part: definition_columns
namespace, name, version, definition;

-- name: definitions
SELECT {definition_columns} FROM definitions;

-- The same, and then the numbers of parked runs, which have no definitions.
-- name: versions
SELECT {definition_columns}, 0 FROM definitions
UNION ALL
SELECT namespace, type, version, NULL, count(*) FROM {open_runs} {index(runs_parked)}
WHERE parked_us IS NOT NULL AND namespace > '' GROUP BY namespace, type, version;

-- name: definitions_of
SELECT {definition_columns} FROM definitions WHERE namespace = $1 AND name = $2;

-- name: save_definition
INSERT INTO definitions ({definition_columns}) {rows(text, text, text, bytea)}
ON CONFLICT (namespace, name, version) DO UPDATE SET definition = excluded.definition;

-- name: remove_definition
DELETE FROM definitions WHERE namespace = $1 AND name = $2 AND version = $3;

-- name: errand_sizes
SELECT length(errand) FROM errands WHERE number > $1 ORDER BY number LIMIT $2;

-- name: has_errands
SELECT EXISTS (SELECT 1 FROM errands WHERE number > $1);

-- name: errands
SELECT number, errand FROM errands WHERE number > $1 ORDER BY number LIMIT $2;

-- name: delete_errands
DELETE FROM errands WHERE number {among($1)};

-- name: add_errand
INSERT INTO errands (errand) {rows(bytea)};

-- name: last_early
SELECT number, bytes FROM early_signals WHERE job = $1 ORDER BY number DESC LIMIT 1;

-- name: early_request
SELECT 1 FROM early_signals {index(early_requests)} WHERE request <> 0 AND job = $1 AND request = $2;

-- name: add_early
INSERT INTO early_signals (job, number, bytes, request, name, input) VALUES ($1, $2, $3, $4, $5, $6);

-- name: early_signals
SELECT name, input, request FROM early_signals WHERE job = $1 ORDER BY number;

-- name: forget_early
DELETE FROM early_signals WHERE job {among($1)};

-- From one set of builds to the next, not from run to run: there may be very many runs that the same builds have parked.
-- name: next_builds
SELECT namespace, type, version, builds FROM {open_runs} {index(runs_parked)}
WHERE parked_us IS NOT NULL AND (namespace, type, version, builds) > ($1, $2, $3, $4)
ORDER BY namespace, type, version, builds LIMIT 1;

-- name: parked_runs
SELECT id FROM {open_runs} {index(runs_parked)}
WHERE parked_us IS NOT NULL AND namespace = $1 AND type = $2 AND version = $3 AND builds = $4 LIMIT $5;

-- name: count_parked
SELECT namespace, type, version, count(*) FROM {open_runs} {index(runs_parked)}
WHERE parked_us IS NOT NULL AND namespace > '' GROUP BY namespace, type, version;

-- name: count_open
SELECT namespace, type, version, count(*) FROM {open_runs} {index(runs_versions)}
WHERE {is_open_by_version} AND namespace > '' GROUP BY namespace, type, version;

-- name: count_open_of
SELECT count(*) FROM {open_runs} {index(runs_versions)} WHERE {is_open_by_version} AND namespace = $1 AND type = $2;

-- name: open_of_version
SELECT 1 FROM {open_runs} {index(runs_versions)} WHERE {is_open_by_version} AND namespace = $1 AND type = $2 AND version = $3 LIMIT 1;

-- A row for 0 has the first time after them.
-- name: due_runs
SELECT * FROM (
    SELECT id, due_us FROM {open_runs} {index(runs_due)} WHERE due_us IS NOT NULL AND due_us <= $1 ORDER BY due_us, id LIMIT $2) AS due
UNION ALL
SELECT * FROM (SELECT 0, due_us FROM {open_runs} {index(runs_due)} WHERE due_us IS NOT NULL AND due_us > $1 ORDER BY due_us LIMIT 1) AS following;

-- name: next_run
SELECT due_us FROM {open_runs} {index(runs_due)} WHERE due_us IS NOT NULL AND (due_us, id) > ($1, $2) ORDER BY due_us, id LIMIT 1;

-- name: closed_runs
SELECT {run_columns} FROM runs {index(runs_closed)}
WHERE {run_is_closed} AND namespace = $1 AND closed_us > 0 AND closed_us < $2 ORDER BY closed_us, id LIMIT $3;

-- name: forget_snapshots
DELETE FROM snapshots WHERE run {among($1)};

-- name: forget_runs
DELETE FROM runs WHERE id {among($1)};

-- A list is in the order of ids. It reads runs from the newest on, a part at a time: all of the part that match, and the last run
-- of the part behind them, with 0. The whole rows, so that no second statement looks for them. A number for each row, in place of
-- the mark, would take twice the time.
-- part: listed_run
{run_columns}, (SELECT run FROM snapshots WHERE run = id) IS NOT NULL AS has_snapshot;

-- part: matching_runs
id < $1 AND namespace = $3 AND ($4 = 0 OR $4 >> status & 1 = 1) AND (CAST($5 AS TEXT) IS NULL OR type = $5)
    AND started_us >= $6 AND (CAST($7 AS TEXT) IS NULL OR workflow_id = $7) AND ($8 = 0 OR parked_us IS NOT NULL)
    AND ($9 = 0 OR decision <> 0) AND ($10 = 0 OR paused_us IS NOT NULL)
ORDER BY id DESC LIMIT $11;

-- name: list_runs
WITH mark (last) AS MATERIALIZED (SELECT id FROM runs WHERE id < $1 ORDER BY id DESC LIMIT 1 OFFSET $2)
SELECT * FROM (SELECT 1, {listed_run} FROM runs WHERE id >= coalesce((SELECT last FROM mark), 0) AND {matching_runs}) AS found
UNION ALL
SELECT 0, {listed_run} FROM runs WHERE id = (SELECT last FROM mark);

-- The same of open runs.
-- name: list_open_runs
WITH mark (last) AS MATERIALIZED (SELECT id FROM {open_runs} WHERE id < $1 ORDER BY id DESC LIMIT 1 OFFSET $2)
SELECT * FROM (SELECT 1, {listed_run} FROM {open_runs} WHERE id >= coalesce((SELECT last FROM mark), 0) AND {matching_runs}) AS found
UNION ALL
SELECT 0, {listed_run} FROM {open_runs} WHERE id = (SELECT last FROM mark);

-- Few runs have one workflow id or are parked: an index returns all of them sooner.
-- name: few_named
SELECT id FROM {open_runs} {index(runs_open)} WHERE {run_is_open} AND namespace = $1 AND workflow_id = $2
UNION ALL
SELECT * FROM (SELECT id FROM runs {index(runs_named)} WHERE {run_is_closed} AND namespace = $1 AND workflow_id = $2 LIMIT $3) AS few;

-- name: few_parked
SELECT id FROM {open_runs} {index(runs_parked)} WHERE parked_us IS NOT NULL AND namespace = $1 LIMIT $2;

-- name: list_these_runs
SELECT 1, {listed_run} FROM runs WHERE id {among($2)} AND {matching_runs};

-- name: list_these_open_runs
SELECT 1, {listed_run} FROM {open_runs} WHERE id {among($2)} AND {matching_runs};
