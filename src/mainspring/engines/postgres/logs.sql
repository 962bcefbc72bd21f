-- The logs of jobs.

-- name: append_logs
INSERT INTO logs (id, job, namespace, function, attempt, delivery_us, first, lines, levels, body)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bytea[], $5::int[], $6::bigint[], $7::bigint[], $8::int[], $9::int[],
    $10::bytea[])
ON CONFLICT (job, id) DO NOTHING;

-- name: drop_logs
DELETE FROM logs USING unnest($1::bigint[], $2::bigint[]) AS d (job, id) WHERE logs.job = d.job AND logs.id = d.id;

-- name: delete_logs
DELETE FROM logs WHERE job = ANY ($1::bigint[]);

-- Nodes sweep at the same time: none waits for another one's rows.
-- name: sweep_logs
WITH old AS (SELECT job, id FROM logs WHERE id < $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED),
gone AS (DELETE FROM logs USING old WHERE logs.job = old.job AND logs.id = old.id RETURNING 1)
SELECT count(*) FROM gone;

-- name: read_logs
SELECT id, job, namespace, function, attempt, delivery_us, first, lines, levels, body FROM logs
WHERE job = $1 AND id > $3 AND namespace = $2 AND ($4::int IS NULL OR attempt = $4) AND levels & $5 <> 0 ORDER BY id LIMIT $6;

-- name: read_logs_backward
SELECT id, job, namespace, function, attempt, delivery_us, first, lines, levels, body FROM logs
WHERE job = $1 AND id < $3 AND namespace = $2 AND ($4::int IS NULL OR attempt = $4) AND levels & $5 <> 0 ORDER BY id DESC LIMIT $6;
