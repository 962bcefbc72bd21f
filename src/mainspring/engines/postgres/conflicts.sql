-- It waits for groups of other nodes that change the job now; see `submit_unique`.
-- name: lock_unique
SELECT id FROM (SELECT set_config('lock_timeout', '100ms', true)) AS timeout, jobs
WHERE function = $1 AND uniq = $2 AND uniq IS NOT NULL FOR UPDATE OF jobs;

-- Ended jobs are in other tables than live ones.
-- name: ripe_successors
SELECT s.job, j.id IS NULL FROM successors AS s LEFT JOIN jobs AS j ON j.id = s.job
WHERE j.id IS NULL OR NOT EXISTS (SELECT FROM jobs WHERE id = s.predecessor)
ORDER BY s.job LIMIT $1;

-- name: lock_successors
SELECT id FROM jobs WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE SKIP LOCKED;

-- name: successors_of
SELECT job, predecessor, due_us, stops FROM successors WHERE job = ANY ($1::bigint[]) ORDER BY job;

-- name: release_successor
SELECT release_successor($1, $2, $3) FROM (SELECT set_config('lock_timeout', '100ms', true)) AS timeout;
