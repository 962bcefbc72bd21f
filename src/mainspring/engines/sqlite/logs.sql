-- The logs of jobs.

-- name: append_log
INSERT OR IGNORE INTO logs (id, job, namespace, function, attempt, delivery_us, first, lines, levels, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: drop_log
DELETE FROM logs WHERE id = ?2 AND job = ?1;

-- name: delete_log
DELETE FROM logs WHERE job = ?;

-- name: sweep_logs
DELETE FROM logs WHERE id IN (SELECT id FROM logs WHERE id < ?1 ORDER BY id LIMIT ?2);

-- name: read_logs
SELECT id, job, namespace, function, attempt, delivery_us, first, lines, levels, body FROM logs
WHERE job = ?1 AND id > ?3 AND namespace = ?2 AND (?4 IS NULL OR attempt = ?4) AND levels & ?5 ORDER BY id LIMIT ?6;

-- name: read_logs_backward
SELECT id, job, namespace, function, attempt, delivery_us, first, lines, levels, body FROM logs
WHERE job = ?1 AND id < ?3 AND namespace = ?2 AND (?4 IS NULL OR attempt = ?4) AND levels & ?5 ORDER BY id DESC LIMIT ?6;
