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
UPDATE runs SET ({changed_columns}) = ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
WHERE id = $13 AND events = $14;

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

-- name: limits_of_workflow
SELECT version, said FROM limits WHERE namespace = $1 AND function = $2;

-- name: roots_of_key
SELECT count(*) FROM jobs INDEXED BY roots WHERE term < 0 AND state = 3 AND function = $1 AND key IS $2;

-- From key to key: the empty one, which is NULL, is before all others.
-- name: next_pending_key
SELECT min(key) FROM (
    SELECT (SELECT key FROM jobs INDEXED BY queue
            WHERE state = 1 AND function = $1 AND priority = level AND key > $2 AND state BETWEEN 1 AND 3 AND term >= 0
            ORDER BY key LIMIT 1) AS key
    FROM (SELECT 0 AS level UNION ALL SELECT 1 UNION ALL SELECT 2))
WHERE key IS NOT NULL;

-- name: has_pending_without_key
SELECT 1 FROM jobs INDEXED BY queue
WHERE state = 1 AND function = $1 AND priority = $2 AND key IS NULL AND state BETWEEN 1 AND 3 AND term >= 0 LIMIT 1;

-- name: first_of_key
SELECT id, options FROM jobs INDEXED BY queue
WHERE state = 1 AND function = $1 AND priority = $2 AND key IS $3 AND state BETWEEN 1 AND 3 AND term >= 0
ORDER BY id LIMIT $4;

-- name: bucket
SELECT pool, number, per_us, burst, level, updated_us FROM buckets WHERE function = $1 AND pool = $2;

-- name: save_bucket
INSERT INTO buckets (function, pool, number, per_us, burst, level, updated_us) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (function, pool) DO UPDATE SET
    number = excluded.number, per_us = excluded.per_us, burst = excluded.burst, level = excluded.level,
    updated_us = excluded.updated_us;

-- name: next_early
SELECT job, EXISTS (SELECT 1 FROM jobs WHERE id = job AND (state < 4 OR attempt = 0)) FROM early_signals
WHERE job > $1 ORDER BY job LIMIT 1;

-- name: reject_root
UPDATE jobs SET state = ?, term = 0, attempt = 0, started_us = 0, ended_us = ?, error = ?, payload = ?
WHERE id = ? AND state = 3 AND term = -1
RETURNING id, function, state, priority, uniq, created_us, due_us, expires_us, started_us, ended_us, term, attempt, suspects,
    input_size, output_size, options, error, NULL, NULL, key;
