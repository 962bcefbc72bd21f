-- name: delete_log
DELETE FROM logs WHERE job = $1;

-- name: sweep_logs
DELETE FROM logs WHERE id IN (SELECT id FROM logs WHERE id < $1 ORDER BY id LIMIT $2);

-- name: sweep_series
DELETE FROM series WHERE (namespace, function, step, at, term) IN (
    SELECT namespace, function, step, at, term FROM series INDEXED BY series_old WHERE step = $1 AND at < $2 ORDER BY at LIMIT $3);

-- The index has the other columns of the primary key too, so its rows are in this order; + makes the planner see it.
-- name: read_namespace_series
SELECT at, function, term, bucket FROM series INDEXED BY series_old
WHERE step = $2 AND at >= $3 AND +namespace = $1 AND (at, function, term) > ($3, $4, $5) ORDER BY at, namespace, function, term LIMIT $6;
