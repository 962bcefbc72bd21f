-- name: works_of
SELECT job, number, function, status, key, meta, x'', attempt, since_us, canceller, ended_us
FROM works WHERE job {among($1)} ORDER BY job, number;

-- name: add_works
INSERT INTO works (job, number, function, status, key, meta, payload, attempt, since_us, canceller, ended_us)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: record_works
UPDATE works SET meta = $3, payload = x'' WHERE job = $1 AND number = $2 AND meta = '' AND status IN (0, 3)
RETURNING job, number;

-- name: end_works
UPDATE works SET status = $3 WHERE job = $1 AND number = $2 AND status = 0;

-- name: change_works
UPDATE works SET status = $3, canceller = $4, ended_us = $5, payload = x'' WHERE job = $1 AND number = $2;

-- name: delete_works
DELETE FROM works WHERE job = $1 AND number = $2;

-- name: ripe_works
SELECT job, number, function, status, key, meta, payload, attempt, since_us, canceller, ended_us FROM works AS w
WHERE status = 3
    OR (status < 3 AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = w.job AND state < {succeeded}))
    OR (status = 4 AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = w.canceller AND state < {succeeded}))
    OR (status > 4 AND ended_us < $1)
LIMIT $2;
