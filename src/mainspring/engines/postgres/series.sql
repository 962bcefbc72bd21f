-- Series: the numbers of each function by minute and half hour. Each node writes rows of its own term alone.

-- name: save_series
INSERT INTO series (namespace, function, step, at, term, bucket)
SELECT * FROM unnest($1::text[], $2::bytea[], $3::int[], $4::bigint[], $5::bigint[], $6::bytea[])
ON CONFLICT (namespace, function, step, at, term) DO UPDATE SET bucket = excluded.bucket;

-- Nodes sweep at the same time: none waits for another one's rows.
-- name: sweep_series
WITH old AS (
    SELECT namespace, function, step, at, term FROM series WHERE step = $1 AND at < $2 ORDER BY at LIMIT $3 FOR UPDATE SKIP LOCKED
)
DELETE FROM series AS s USING old
WHERE s.namespace = old.namespace AND s.function = old.function AND s.step = old.step AND s.at = old.at AND s.term = old.term;

-- name: read_series
SELECT at, term, bucket FROM series
WHERE namespace = $1 AND function = $2 AND step = $3 AND (at, term) > ($4, $5) ORDER BY at, term LIMIT $6;

-- name: read_namespace_series
SELECT at, function, term, bucket FROM series
WHERE step = $2 AND at >= $3 AND namespace = $1 AND (at, function, term) > ($3, $4, $5) ORDER BY at, function, term LIMIT $6;
