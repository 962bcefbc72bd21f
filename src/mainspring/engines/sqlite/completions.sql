-- name: lock_completion
SELECT version, content FROM completions WHERE digest = $1;

-- name: lock_completions_of
SELECT version, content FROM completions WHERE job = $1;

-- name: take_completed
UPDATE jobs SET state = {leased}, term = $4
WHERE id = $1 AND due_us = $2 AND attempt = $3 AND state = {scheduled}
RETURNING function, priority, payload;
