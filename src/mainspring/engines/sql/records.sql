-- The logs of jobs, and their series: the numbers of each function by minute and half hour, each written by the node of its term.

-- name: append_logs
INSERT INTO logs (id, job, namespace, function, attempt, delivery_us, first, lines, levels, body)
{rows(bigint, bigint, text, bytea, int, bigint, bigint, int, int, bytea)} ON CONFLICT DO NOTHING;

-- name: drop_logs
DELETE FROM logs WHERE (job, id) IN ({rows(bigint, bigint)});

-- name: read_logs
SELECT id, job, namespace, function, attempt, delivery_us, first, lines, levels, body FROM logs
WHERE job = $1 AND id > $3 AND namespace = $2 AND (CAST($4 AS INTEGER) IS NULL OR attempt = $4) AND levels & $5 <> 0
ORDER BY id LIMIT $6;

-- name: read_logs_backward
SELECT id, job, namespace, function, attempt, delivery_us, first, lines, levels, body FROM logs
WHERE job = $1 AND id < $3 AND namespace = $2 AND (CAST($4 AS INTEGER) IS NULL OR attempt = $4) AND levels & $5 <> 0
ORDER BY id DESC LIMIT $6;

-- name: save_series
INSERT INTO series (namespace, function, step, at, term, bucket) {rows(text, bytea, int, bigint, bigint, bytea)}
ON CONFLICT (namespace, function, step, at, term) DO UPDATE SET bucket = excluded.bucket;

-- name: read_series
SELECT at, term, bucket FROM series
WHERE namespace = $1 AND function = $2 AND step = $3 AND (at, term) > ($4, $5) ORDER BY at, term LIMIT $6;
