-- name: lock_completion
SELECT version, content FROM completions WHERE digest = $1 FOR UPDATE;

-- name: lock_completions_of
SELECT version, content FROM completions WHERE job = $1 ORDER BY digest FOR UPDATE;

-- name: take_completed
UPDATE jobs SET state = {leased}, term = $4
WHERE id = $1 AND state = {scheduled} AND due_us = $2 AND attempt = $3
RETURNING function, priority, payload;
