-- part: specified
schedules;
-- part: namespace
iif(instr(name, char(31)), substr(name, 1, instr(name, char(31)) - 1), 'default');
-- part: to_mend
standing BETWEEN 2 AND 3;

-- name: specifications
SELECT name, schedule FROM schedules;

-- name: schedule
SELECT name, schedule, state FROM schedules WHERE name = $1;

-- name: due_schedules
SELECT name, version, next_us FROM schedules INDEXED BY schedules_due WHERE next_us <= $1 ORDER BY next_us, name LIMIT $2;

-- name: save_schedules
INSERT INTO schedules (name, next_us, queued, version, schedule, state) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name) DO UPDATE SET next_us = $2, queued = $3, version = $4, schedule = $5, state = $6;

-- name: remove_schedules
DELETE FROM schedules WHERE name = $1;

-- name: fires
SELECT schedule, fire_us, fire FROM fires WHERE schedule = $1 AND fire_us = $2;

-- name: unfinished_fires
SELECT fire FROM fires INDEXED BY fires_unfinished WHERE schedule = $1 AND standing < 4 ORDER BY fire_us;

-- name: fires_of_jobs
SELECT fire FROM fires INDEXED BY fires_of_job WHERE job = $1 AND standing BETWEEN 1 AND 2 ORDER BY schedule, fire_us;

-- name: joined_fires
SELECT fire FROM fires INDEXED BY fires_to_mend
WHERE standing = 2 AND {to_mend} AND NOT EXISTS (SELECT * FROM jobs WHERE jobs.id = fires.job AND jobs.state < 4) LIMIT $1;

-- name: new_fires
INSERT INTO fires (schedule, fire_us, standing, job, fire) VALUES ($1, $2, $3, $4, $5);

-- name: save_fires
UPDATE fires SET standing = $3, job = $4, fire = $5 WHERE schedule = $1 AND fire_us = $2;

-- name: remove_fires
DELETE FROM fires WHERE schedule = $1 AND fire_us = $2;

-- name: joins
SELECT child, fire_us, parents_left, stopped FROM joins WHERE child = $1 AND fire_us = $2;

-- name: remove_joins
DELETE FROM joins WHERE child = $1 AND fire_us = $2;

-- name: oldest_fires
SELECT f.fire FROM json_each($1) AS s CROSS JOIN fires AS f
WHERE f.schedule = s.value
    AND f.fire_us < min($3, (SELECT fire_us FROM fires WHERE schedule = s.value ORDER BY fire_us DESC LIMIT 1 OFFSET $2))
LIMIT $4;

-- name: forget_fires
DELETE FROM fires WHERE schedule = $1 AND fire_us <= $2;

-- name: forgotten
SELECT schedule, until_us FROM forgotten WHERE schedule = $1;

-- Schedules with their bounds as JSON, in their order, as all that the condition of a row depends on. Of each, $2 + 1 rows.
-- name: newest_fires
SELECT f.fire FROM json_each($1) AS s CROSS JOIN fires AS f
WHERE f.schedule = s.value ->> 0 AND f.fire_us < s.value ->> 1
    AND f.fire_us >= max(
        s.value ->> 2,
        ifnull(
            (
                SELECT fire_us FROM fires
                WHERE schedule = s.value ->> 0 AND fire_us < s.value ->> 1 AND fire_us >= s.value ->> 2
                ORDER BY fire_us DESC LIMIT 1 OFFSET $2
            ),
            0
        )
    )
LIMIT $3;

-- name: last_outcomes
SELECT (
    SELECT fire FROM (SELECT fire, standing FROM fires WHERE schedule = s.value ORDER BY fire_us DESC LIMIT $2)
    WHERE standing >= 3 LIMIT 1
) FROM json_each($1) AS s;
