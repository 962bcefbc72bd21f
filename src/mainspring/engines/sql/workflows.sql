-- name: load_run
SELECT id, root, namespace, workflow_id, type, version, status, started_us, closed_us, events, runs.history_bytes, input_size,
    output_size, due_us, about, decision, slot, parked_us, builds, parking, snapshots.history_bytes, state
FROM runs LEFT JOIN snapshots ON run = id WHERE id = ?1 AND (?2 = '' OR namespace = ?2);

-- name: run_of_namespace
SELECT id FROM runs WHERE id = ?1 AND (?2 = '' OR namespace = ?2);

-- Many runs at once, each row in a quarter of the time.
-- name: load_short_runs
SELECT id, root, namespace, workflow_id, type, version, status, started_us, closed_us, events, history_bytes, input_size,
    output_size, due_us, about, decision, slot, parked_us, builds, parking
FROM runs
WHERE id IN (SELECT value FROM json_each(?)) AND status = 0 AND NOT EXISTS (SELECT 1 FROM snapshots WHERE run = id);

-- name: whole_histories
SELECT run, block FROM history WHERE run IN (SELECT value FROM json_each(?)) ORDER BY run, first;

-- name: blocks
SELECT block FROM history
WHERE run = ?1 AND first >= ifnull((SELECT max(first) FROM history WHERE run = ?1 AND first <= ?2), 1) ORDER BY first LIMIT ?3;

-- name: open_run
SELECT id FROM runs INDEXED BY runs_open WHERE status = 0 AND namespace = ? AND workflow_id = ?;

-- name: last_run
SELECT id FROM runs INDEXED BY runs_named WHERE status > 0 AND namespace = ? AND workflow_id = ? ORDER BY id DESC LIMIT 1;

-- name: last_link
SELECT id FROM runs INDEXED BY runs_links WHERE id <> root AND root = ?1 AND (?2 = '' OR namespace = ?2) ORDER BY id DESC LIMIT 1;

-- name: new_run
INSERT INTO runs (id, root, namespace, workflow_id, type, version, status, started_us, closed_us, events, history_bytes,
    input_size, output_size, due_us, about, decision, slot, parked_us, builds, parking)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- Most changes touch no column that has an index.
-- name: append_run
UPDATE runs SET events = ?, history_bytes = ?, about = ?, decision = ? WHERE id = ? AND events = ?;

-- name: reschedule_run
UPDATE runs SET events = ?, history_bytes = ?, about = ?, decision = ?, due_us = ? WHERE id = ? AND events = ?;

-- name: change_run
UPDATE runs
SET events = ?, history_bytes = ?, about = ?, decision = ?, due_us = ?, status = ?, closed_us = ?, output_size = ?, parked_us = ?,
    builds = ?, parking = ?
WHERE id = ? AND events = ?;

-- name: append_block
INSERT INTO history (run, first, block) VALUES (?, ?, ?);

-- name: save_snapshot
INSERT INTO snapshots (run, history_bytes, state) VALUES (?, ?, ?)
ON CONFLICT (run) DO UPDATE SET history_bytes = excluded.history_bytes, state = excluded.state;

-- name: definitions
SELECT namespace, name, version, definition FROM definitions;

-- name: definitions_of
SELECT namespace, name, version, definition FROM definitions WHERE namespace = ? AND name = ?;

-- name: save_definition
INSERT INTO definitions (namespace, name, version, definition) VALUES (?, ?, ?, ?)
ON CONFLICT (namespace, name, version) DO UPDATE SET definition = excluded.definition;

-- name: first_errands
SELECT number, errand FROM errands WHERE number > ? ORDER BY number LIMIT ?;

-- name: delete_errand
DELETE FROM errands WHERE number = ?;

-- name: add_errand
INSERT INTO errands (errand) VALUES (?);

-- name: last_early
SELECT number, bytes FROM early_signals WHERE job = ? ORDER BY number DESC LIMIT 1;

-- name: early_request
SELECT 1 FROM early_signals INDEXED BY early_requests WHERE request <> 0 AND job = ? AND request = ?;

-- name: add_early
INSERT INTO early_signals (job, number, bytes, request, name, input) VALUES (?, ?, ?, ?, ?, ?);

-- name: early_signals
SELECT name, input, request FROM early_signals WHERE job = ? ORDER BY number;

-- name: forget_early
DELETE FROM early_signals WHERE job = ?;

-- From one set of builds to the next, not from run to run: there may be very many runs that the same builds have parked.
-- name: next_builds
SELECT namespace, type, version, builds FROM runs INDEXED BY runs_parked
WHERE parked_us IS NOT NULL AND (namespace, type, version, builds) > (?, ?, ?, ?)
ORDER BY namespace, type, version, builds LIMIT 1;

-- name: parked_runs
SELECT id FROM runs INDEXED BY runs_parked
WHERE parked_us IS NOT NULL AND namespace = ? AND type = ? AND version = ? AND builds = ? LIMIT ?;

-- name: count_parked
SELECT namespace, type, version, count(*) FROM runs INDEXED BY runs_parked
WHERE parked_us IS NOT NULL AND namespace > '' GROUP BY namespace, type, version;

-- name: count_open
SELECT namespace, type, version, count(*) FROM runs INDEXED BY runs_versions
WHERE status = 0 AND namespace > '' GROUP BY namespace, type, version;

-- name: open_of_version
SELECT 1 FROM runs INDEXED BY runs_versions WHERE status = 0 AND namespace = ? AND type = ? AND version = ? LIMIT 1;

-- name: remove_definition
DELETE FROM definitions WHERE namespace = ? AND name = ? AND version = ?;

-- name: due_runs
SELECT id, due_us FROM runs INDEXED BY runs_due WHERE due_us IS NOT NULL AND due_us <= ? ORDER BY due_us, id LIMIT ?;

-- name: next_run
SELECT due_us FROM runs INDEXED BY runs_due WHERE due_us IS NOT NULL AND (due_us, id) > (?, ?) ORDER BY due_us, id LIMIT 1;

-- name: closed_runs
SELECT id, root, namespace, workflow_id, type, version, status, started_us, closed_us, events, history_bytes, input_size,
    output_size, due_us, about, decision, slot, parked_us, builds, parking
FROM runs INDEXED BY runs_closed WHERE status > 0 AND namespace = ? AND closed_us < ? ORDER BY closed_us, id LIMIT ?;

-- name: forget_history
DELETE FROM history WHERE run = ?;

-- name: forget_snapshot
DELETE FROM snapshots WHERE run = ?;

-- name: forget_run
DELETE FROM runs WHERE id = ?;

-- A list is in the order of ids. It reads all runs from the newest on, a part at a time: up to this one.
-- name: mark_run
SELECT id, started_us FROM runs WHERE id < ? ORDER BY id DESC LIMIT 1 OFFSET ?;

-- name: list_runs
SELECT id FROM runs
WHERE id < ?1 AND id >= ?2 AND namespace = ?3 AND (?4 = 0 OR ?4 >> status & 1)
    AND (?5 IS NULL OR type = ?5) AND started_us >= ?6 AND (?7 IS NULL OR workflow_id = ?7) AND (?8 = 0 OR parked_us IS NOT NULL)
    AND (?9 = 0 OR decision <> 0)
ORDER BY id DESC LIMIT ?10;

-- Few runs have one workflow id or are parked: an index returns all of them sooner.
-- name: few_named
SELECT id FROM runs INDEXED BY runs_open WHERE status = 0 AND namespace = ?1 AND workflow_id = ?2
UNION ALL
SELECT * FROM (SELECT id FROM runs INDEXED BY runs_named WHERE status > 0 AND namespace = ?1 AND workflow_id = ?2 LIMIT ?3);

-- name: few_parked
SELECT id FROM runs INDEXED BY runs_parked WHERE parked_us IS NOT NULL AND namespace = ?1 LIMIT ?2;

-- name: list_these_runs
SELECT id FROM runs
WHERE id IN (SELECT value FROM json_each(?2))
    AND id < ?1 AND namespace = ?3 AND (?4 = 0 OR ?4 >> status & 1)
    AND (?5 IS NULL OR type = ?5) AND started_us >= ?6 AND (?7 IS NULL OR workflow_id = ?7) AND (?8 = 0 OR parked_us IS NOT NULL)
    AND (?9 = 0 OR decision <> 0)
ORDER BY id DESC LIMIT ?10;
