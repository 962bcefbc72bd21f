-- part: open_runs
runs;
-- part: is_open_by_version
status = 0;

-- name: append_block
INSERT INTO history (run, first, block) {rows(bigint, bigint, bytea)};

-- name: append_run
UPDATE runs SET ({appended_columns}) = ($1, $2, $3, $4) WHERE id = $5 AND events = $6;

-- name: reschedule_run
UPDATE runs SET ({rescheduled_columns}) = ($1, $2, $3, $4, $5) WHERE id = $6 AND events = $7;

-- name: change_run
UPDATE runs SET ({changed_columns}) = ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) WHERE id = $12 AND events = $13;

-- name: forget_histories
DELETE FROM history WHERE run {among($1)};

-- Newer runs have higher ids.
-- name: last_run
SELECT id FROM runs {index(runs_named)} WHERE {run_is_closed} AND namespace = $1 AND workflow_id = $2 ORDER BY id DESC LIMIT 1;

-- name: last_link
SELECT id FROM runs {index(runs_links)} WHERE id <> root AND root = $1 AND ($2 = '' OR namespace = $2) ORDER BY id DESC LIMIT 1;

-- A waiting job of any function. Stores have few functions, and uniques are indexed by function.
-- name: waiting_named
SELECT j.id FROM functions AS f
CROSS JOIN jobs AS j INDEXED BY live ON j.function = f.id AND j.uniq = $2 AND j.uniq IS NOT NULL AND j.state < 4
WHERE f.namespace = $1 AND j.state < 2;

-- name: next_early
SELECT job, EXISTS (SELECT 1 FROM jobs WHERE id = job AND (state < 4 OR attempt = 0)) FROM early_signals
WHERE job > $1 ORDER BY job LIMIT 1;

-- name: reject_root
UPDATE jobs SET state = ?, term = 0, attempt = 0, started_us = 0, ended_us = ?, error = ?, payload = ?
WHERE id = ? AND state = 3 AND term = -1
RETURNING id, function, state, priority, uniq, created_us, due_us, expires_us, started_us, ended_us, term, attempt, suspects,
    input_size, output_size, options, error, NULL, NULL, key;
