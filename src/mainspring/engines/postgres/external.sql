-- name: works_of
SELECT job, number, function, status, key, meta, ''::bytea, attempt, since_us, canceller, ended_us
FROM works WHERE job {among($1)} ORDER BY job, number FOR UPDATE;

-- name: add_works
INSERT INTO works (job, number, function, status, key, meta, payload, attempt, since_us, canceller, ended_us)
{rows(bigint, int, bytea, smallint, text, text, bytea, int, bigint, bigint, bigint)};

-- Each of these looks into the index once for each row.
-- name: record_works
UPDATE works AS w SET meta = s.meta, payload = ''
FROM unnest($1::bigint[], $2::int[], $3::text[]) AS s (job, number, meta)
WHERE w.job = s.job AND w.number = s.number AND w.meta = '' AND w.status IN (0, 3)
RETURNING w.job, w.number;

-- name: end_works
UPDATE works AS w SET status = s.status
FROM unnest($1::bigint[], $2::int[], $3::smallint[]) AS s (job, number, status)
WHERE w.job = s.job AND w.number = s.number AND w.status = 0;

-- name: change_works
UPDATE works AS w SET status = s.status, canceller = s.canceller, ended_us = s.ended_us, payload = ''
FROM unnest($1::bigint[], $2::int[], $3::smallint[], $4::bigint[], $5::bigint[]) AS s (job, number, status, canceller, ended_us)
WHERE w.job = s.job AND w.number = s.number;

-- name: delete_works
DELETE FROM works AS w USING unnest($1::bigint[], $2::int[]) AS s (job, number) WHERE w.job = s.job AND w.number = s.number;

-- Ended jobs are in other tables than live ones. A job that is on its way from one to the other in another transaction is
-- still found as live, and looked at again. Looks of other nodes have other rows.
-- name: ripe_works
SELECT job, number, function, status, key, meta, payload, attempt, since_us, canceller, ended_us FROM works AS w
WHERE status = 3
    OR (status < 3 AND NOT EXISTS (SELECT FROM jobs WHERE id = w.job))
    OR (status = 4 AND NOT EXISTS (SELECT FROM jobs WHERE id = w.canceller))
    OR (status > 4 AND ended_us < $1)
ORDER BY job, number LIMIT $2 FOR UPDATE SKIP LOCKED;
