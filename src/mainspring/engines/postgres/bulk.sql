-- part: may_take
(term = $1 OR NOT EXISTS (SELECT FROM terms AS t WHERE t.term = operations.term AND NOT t.ended));
-- part: skip_locked
FOR UPDATE SKIP LOCKED;

-- name: is_over
SELECT NOT EXISTS (SELECT FROM terms WHERE term = $1 AND NOT ended);

-- The jobs of a step, which no other node may change in between.
-- name: lock_live_jobs
SELECT FROM jobs WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE;

-- name: lock_dead_jobs
SELECT FROM dead WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE;
