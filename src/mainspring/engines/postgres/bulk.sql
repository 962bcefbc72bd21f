-- name: show
SELECT id, namespace, status, term, revision, created_us, ended_us, spec, progress FROM operations WHERE id = $1;

-- A step and an early end of an operation run one after the other.
-- name: load
SELECT id, namespace, status, term, revision, created_us, ended_us, spec, progress FROM operations WHERE id = $1 FOR UPDATE;

-- name: save
INSERT INTO operations AS o (id, namespace, status, term, revision, created_us, ended_us, spec, progress)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (id) DO UPDATE SET status = $3, term = $4, revision = $5, ended_us = $7, progress = $9;

-- name: save_step
INSERT INTO operation_steps (operation, revision, jobs) VALUES ($1, $2, $3);

-- name: is_over
SELECT NOT EXISTS (SELECT FROM terms WHERE term = $1 AND NOT ended);

-- The jobs of a step, which no other node may change in between.
-- name: lock_live
SELECT FROM jobs WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE;

-- name: lock_dead
SELECT FROM dead WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE;

-- name: list
SELECT id, namespace, status, term, revision, created_us, ended_us, spec, progress FROM operations
WHERE namespace = $1 AND id < $2 ORDER BY id DESC LIMIT $3;

-- name: find
SELECT id, namespace, status, o.term, revision, created_us, ended_us, spec, progress FROM operations AS o
WHERE status = 0 AND (o.term = $1 OR NOT EXISTS (SELECT FROM terms AS t WHERE t.term = o.term AND NOT t.ended))
ORDER BY id;

-- name: steps
SELECT revision, jobs FROM operation_steps WHERE operation = $1 AND revision > $2 ORDER BY revision LIMIT $3;

-- name: sweep_steps
WITH old AS (
    SELECT s.operation, s.revision FROM operations AS o JOIN operation_steps AS s ON s.operation = o.id
    WHERE o.status > 0 AND o.ended_us < $1 LIMIT $2
), gone AS (
    DELETE FROM operation_steps AS s USING old WHERE s.operation = old.operation AND s.revision = old.revision RETURNING 1
)
SELECT count(*) FROM gone;

-- name: sweep
WITH old AS (
    SELECT id FROM operations AS o WHERE status > 0 AND ended_us < $1
        AND NOT EXISTS (SELECT FROM operation_steps AS s WHERE s.operation = o.id)
    LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM operations AS o USING old WHERE o.id = old.id RETURNING 1
)
SELECT count(*) FROM gone;
