-- name: take_deadlines
SELECT job, kind, due_us FROM deadlines WHERE schedule = '' AND job {among($1)} AND due_us <= $2 ORDER BY job, kind;

-- name: set_options
UPDATE jobs SET options = $2 WHERE id = $1;

-- name: remove_deadlines
DELETE FROM deadlines WHERE job = $1 AND kind = $2 AND schedule = '';
