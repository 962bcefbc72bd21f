-- The times by which jobs should have begun and ended, and by which schedules should have started a job (mainspring.deadlines).

-- name: due_deadlines
SELECT due_us, job, kind, schedule FROM deadlines WHERE due_us <= $1 ORDER BY due_us, job, kind, schedule LIMIT $2;

-- name: next_deadline
SELECT due_us FROM deadlines WHERE (due_us, job, kind, schedule) > ($1, $2, $3, $4) ORDER BY due_us, job, kind, schedule LIMIT 1;

-- name: put_deadlines
INSERT INTO deadlines (job, kind, due_us, schedule) {rows(bigint, smallint, bigint, text)}
ON CONFLICT (job, kind, schedule) DO UPDATE SET due_us = excluded.due_us;

-- name: remove_absences
DELETE FROM deadlines WHERE job = 0 AND schedule {among($1, text)} AND due_us <= $2;

-- name: is_open_run
SELECT status FROM runs WHERE id = $1;
