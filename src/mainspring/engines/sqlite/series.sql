-- Series: the numbers of each function by minute and half hour.

-- name: save_series
INSERT INTO series (namespace, function, step, at, term, bucket) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (namespace, function, step, at, term) DO UPDATE SET bucket = excluded.bucket;

-- name: sweep_series
DELETE FROM series WHERE (namespace, function, step, at, term) IN (
    SELECT namespace, function, step, at, term FROM series INDEXED BY series_old WHERE step = ?1 AND at < ?2 ORDER BY at LIMIT ?3);

-- name: read_series
SELECT at, term, bucket FROM series
WHERE namespace = ?1 AND function = ?2 AND step = ?3 AND (at, term) > (?4, ?5) ORDER BY at, term LIMIT ?6;

-- The index has the other columns of the primary key too, so its rows are in this order; + makes the planner see it.
-- name: read_namespace_series
SELECT at, function, term, bucket FROM series INDEXED BY series_old
WHERE step = ?2 AND at >= ?3 AND +namespace = ?1 AND (at, function, term) > (?3, ?4, ?5) ORDER BY at, namespace, function, term LIMIT ?6;
