-- name: operation
SELECT id, namespace, status, term, revision, created_us, ended_us, spec, progress FROM operations WHERE id = ?;

-- name: save_operation
INSERT OR REPLACE INTO operations (id, namespace, status, term, revision, created_us, ended_us, spec, progress)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: save_operation_step
INSERT INTO operation_steps (operation, revision, jobs) VALUES (?, ?, ?);

-- name: operations
SELECT id, namespace, status, term, revision, created_us, ended_us, spec, progress FROM operations
WHERE namespace = ? AND id < ? ORDER BY id DESC LIMIT ?;

-- name: running_operations
SELECT id, namespace, status, term, revision, created_us, ended_us, spec, progress FROM operations WHERE status = 0 ORDER BY id;

-- name: operation_steps
SELECT revision, jobs FROM operation_steps WHERE operation = ? AND revision > ? ORDER BY revision LIMIT ?;

-- name: sweep_operation_steps
DELETE FROM operation_steps WHERE rowid IN (
    SELECT s.rowid FROM operations AS o CROSS JOIN operation_steps AS s ON s.operation = o.id
    WHERE o.status > 0 AND o.ended_us < ?1 LIMIT ?2);

-- name: sweep_operations
DELETE FROM operations WHERE id IN (
    SELECT id FROM operations AS o WHERE status > 0 AND ended_us < ?1
        AND NOT EXISTS (SELECT * FROM operation_steps AS s WHERE s.operation = o.id)
    LIMIT ?2);
