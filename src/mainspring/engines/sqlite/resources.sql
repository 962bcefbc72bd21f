-- name: limits
SELECT namespace, function, version, said FROM limits WHERE (namespace, function) > (?, ?) ORDER BY namespace, function LIMIT ?;

-- name: limits_of
SELECT version, said FROM limits WHERE namespace = ? AND function = ?;

-- name: save_limits
INSERT INTO limits (namespace, function, version, said) VALUES (?, ?, ?, ?)
ON CONFLICT (namespace, function) DO UPDATE SET version = excluded.version, said = excluded.said;

-- Jobs without a key come first; those with a key follow in the order of keys.
-- name: next_key
SELECT key FROM jobs INDEXED BY queue
WHERE state = 1 AND function = ? AND priority = ? AND key > ? AND state BETWEEN 1 AND 3 AND term >= 0
ORDER BY key LIMIT 1;

-- name: ids_of_key
SELECT id FROM jobs INDEXED BY queue
WHERE state = 1 AND function = ? AND priority = ? AND key IS ? AND state BETWEEN 1 AND 3 AND term >= 0
ORDER BY id LIMIT ?;

-- name: claim_these
UPDATE jobs SET state = 2, term = ? WHERE id IN (SELECT value FROM json_each(?))
RETURNING id, priority, uniq, created_us, due_us, expires_us, started_us, attempt, suspects, input_size, options, error, payload, key;
