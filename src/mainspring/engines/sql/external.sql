-- Submissions of work that runs elsewhere (mainspring.external.store).

-- name: works_shown
SELECT job, number, function, status, key, meta, '', attempt, since_us, canceller, ended_us
FROM works WHERE job = $1 ORDER BY number DESC LIMIT $2;

-- name: any_work
SELECT 1 FROM works WHERE status < 5 LIMIT 1;
