-- The last published value of each name of a job (mainspring.values). The values of a run belong to its root job.

-- name: value_marks
SELECT job, name, number, length(value) FROM job_values WHERE job {among($1)} ORDER BY job, name;

-- name: put_values
INSERT INTO job_values (job, name, attempt, number, at_us, value) {rows(bigint, text, int, bigint, bigint, bytea)}
ON CONFLICT (job, name) DO UPDATE SET attempt = excluded.attempt, number = excluded.number, at_us = excluded.at_us,
    value = excluded.value;

-- name: drop_values
DELETE FROM job_values WHERE (job, name) IN ({rows(bigint, text)});

-- name: valued_jobs
SELECT DISTINCT job FROM job_values WHERE job > $1 ORDER BY job LIMIT $2;

-- name: forget_values
DELETE FROM job_values WHERE job {among($1)};

-- name: values_of
SELECT job, name, attempt, number, at_us, value FROM job_values WHERE job = $1 ORDER BY name;

-- name: value_of
SELECT job, name, attempt, number, at_us, value FROM job_values WHERE job = $1 AND name = $2;

-- name: value_numbers
SELECT job, max(number) FROM job_values WHERE job {among($1)} GROUP BY job;
