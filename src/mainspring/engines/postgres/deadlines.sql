-- Another node may ring the same ones: the first one to lock a row has it. Nobody waits here, so that nobody can wait for this.
-- name: take_deadlines
SELECT job, kind, due_us FROM deadlines
WHERE schedule = '' AND job {among($1)} AND due_us <= $2 ORDER BY job, kind FOR UPDATE SKIP LOCKED;

-- The lock keeps the event of a job's end behind the one of its lateness.
-- name: lock_late_jobs
SELECT id FROM jobs WHERE id {among($1)} ORDER BY id FOR UPDATE SKIP LOCKED;

-- name: live_of
SELECT id FROM jobs WHERE id {among($1)};

-- name: set_options
UPDATE jobs SET options = $2 WHERE id = $1;

-- name: remove_deadlines
DELETE FROM deadlines USING ({rows(bigint, smallint)}) AS s (job, kind)
WHERE deadlines.job = ANY (ARRAY[s.job]) AND deadlines.kind = s.kind AND schedule = '';
