-- name: delete_logs
DELETE FROM logs WHERE job = ANY ($1::bigint[]);

-- Nodes sweep at the same time: none waits for another one's rows.
-- name: sweep_logs
WITH old AS (SELECT job, id FROM logs WHERE id < $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)
DELETE FROM logs USING old WHERE logs.job = old.job AND logs.id = old.id;

-- name: sweep_series
WITH old AS (
    SELECT namespace, function, step, at, term FROM series WHERE step = $1 AND at < $2 ORDER BY at LIMIT $3 FOR UPDATE SKIP LOCKED
)
DELETE FROM series AS s USING old
WHERE s.namespace = old.namespace AND s.function = old.function AND s.step = old.step AND s.at = old.at AND s.term = old.term;

-- name: read_namespace_series
SELECT at, function, term, bucket FROM series
WHERE step = $2 AND at >= $3 AND namespace = $1 AND (at, function, term) > ($3, $4, $5) ORDER BY at, function, term LIMIT $6;
