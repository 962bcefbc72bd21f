-- part: operation
SELECT id, namespace, status, term, revision, created_us, ended_us, spec, progress FROM operations;

-- name: operation
{operation} WHERE id = $1;

-- A step and an early end of an operation run one after the other.
-- name: lock_operation
{operation} WHERE id = $1 {for_update};

-- name: operations
{operation} WHERE namespace = $1 AND id < $2 ORDER BY id DESC LIMIT $3;

-- name: running_operations
{operation} WHERE status = 0 AND {may_take} ORDER BY id;

-- name: save_operation
INSERT INTO operations (id, namespace, status, term, revision, created_us, ended_us, spec, progress)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (id) DO UPDATE SET status = $3, term = $4, revision = $5, ended_us = $7, progress = $9;

-- name: save_operation_step
INSERT INTO operation_steps (operation, revision, jobs) VALUES ($1, $2, $3);

-- name: operation_steps
SELECT revision, jobs FROM operation_steps WHERE operation = $1 AND revision > $2 ORDER BY revision LIMIT $3;

-- name: sweep_operation_steps
WITH old AS MATERIALIZED (
    SELECT s.operation, s.revision FROM operations AS o CROSS JOIN operation_steps AS s
    WHERE s.operation = o.id AND o.status > 0 AND o.ended_us < $1 LIMIT $2
)
DELETE FROM operation_steps WHERE (operation, revision) IN (SELECT operation, revision FROM old);

-- name: sweep_operations
WITH old AS MATERIALIZED (
    SELECT id FROM operations AS o WHERE status > 0 AND ended_us < $1
        AND NOT EXISTS (SELECT * FROM operation_steps AS s WHERE s.operation = o.id)
    LIMIT $2 {skip_locked}
)
DELETE FROM operations WHERE id IN (SELECT id FROM old);
