-- name: schedule
SELECT schedule, state FROM schedules WHERE name = ?;

-- name: schedules
SELECT name, schedule, state FROM schedules
WHERE name > ?1 AND (?3 = '' OR iif(instr(name, char(31)), substr(name, 1, instr(name, char(31)) - 1), 'default') = ?3)
ORDER BY name LIMIT ?2;

-- name: specifications
SELECT name, schedule FROM schedules;

-- name: save_schedule
INSERT INTO schedules (name, next_us, queued, version, schedule, state) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET next_us = excluded.next_us, queued = excluded.queued, version = excluded.version, schedule = excluded.schedule,
    state = excluded.state;

-- name: remove_schedule
DELETE FROM schedules WHERE name = ?;

-- name: due_schedules
SELECT name, version, next_us FROM schedules INDEXED BY schedules_due
WHERE next_us IS NOT NULL AND next_us <= ? ORDER BY next_us, name LIMIT ?;

-- name: next_schedule
SELECT next_us FROM schedules INDEXED BY schedules_due
WHERE next_us IS NOT NULL AND (next_us, name) > (?, ?) ORDER BY next_us, name LIMIT 1;

-- name: others_due
SELECT name, version, next_us FROM schedules INDEXED BY schedules_due
WHERE next_us IS NOT NULL AND (next_us, name) > (?1, ?2) AND next_us <= ?3
    AND iif(instr(name, char(31)), substr(name, 1, instr(name, char(31)) - 1), 'default') NOT IN (SELECT value FROM json_each(?4))
ORDER BY next_us, name LIMIT ?5;

-- name: queued_schedules
SELECT name FROM schedules INDEXED BY schedules_queued WHERE queued > 0 ORDER BY name LIMIT ?;

-- name: fire
SELECT fire FROM fires WHERE schedule = ? AND fire_us = ?;

-- name: unfinished
SELECT fire FROM fires INDEXED BY fires_unfinished WHERE schedule = ? AND standing < 4 ORDER BY fire_us;

-- name: fires_of_job
SELECT fire FROM fires INDEXED BY fires_of_job WHERE job = ? AND standing BETWEEN 1 AND 2 ORDER BY schedule, fire_us;

-- name: new_fire
INSERT INTO fires (standing, job, fire, schedule, fire_us) VALUES (?, ?, ?, ?, ?);

-- name: save_fire
UPDATE fires SET standing = ?, job = ?, fire = ? WHERE schedule = ? AND fire_us = ?;

-- name: remove_fire
DELETE FROM fires WHERE schedule = ? AND fire_us = ?;

-- name: history
SELECT fire_us, fire FROM fires WHERE schedule = ? AND fire_us < ? ORDER BY fire_us DESC LIMIT ?;

-- Schedules with their bounds as JSON, in their order, as all that the condition of a row depends on. Of each, ?2 + 1 rows.
-- name: newest_fires
SELECT f.fire FROM json_each(?1) AS s CROSS JOIN fires AS f
WHERE f.schedule = s.value ->> 0 AND f.fire_us < s.value ->> 1
    AND f.fire_us >= max(
        s.value ->> 2,
        ifnull(
            (
                SELECT fire_us FROM fires
                WHERE schedule = s.value ->> 0 AND fire_us < s.value ->> 1 AND fire_us >= s.value ->> 2
                ORDER BY fire_us DESC LIMIT 1 OFFSET ?2
            ),
            0
        )
    )
LIMIT ?3;

-- name: last_outcomes
SELECT (
    SELECT fire FROM (SELECT fire, standing FROM fires WHERE schedule = s.value ORDER BY fire_us DESC LIMIT ?2)
    WHERE standing >= 3 LIMIT 1
) FROM json_each(?1) AS s;

-- name: joined
SELECT fire, jobs.id, jobs.state, jobs.term, jobs.attempt, jobs.started_us, jobs.ended_us, jobs.error
FROM fires INDEXED BY fires_to_mend LEFT JOIN jobs ON jobs.id = fires.job
WHERE standing = 2 AND standing BETWEEN 2 AND 3 AND (jobs.id IS NULL OR jobs.state > 3) LIMIT ?;

-- name: stuck
SELECT fire FROM fires INDEXED BY fires_to_mend WHERE standing = 3 AND standing BETWEEN 2 AND 3 LIMIT ?;

-- From name to name, not from row to row.
-- name: names_of_fires
WITH RECURSIVE names (name) AS (
    SELECT (SELECT schedule FROM fires WHERE schedule > ?1 ORDER BY schedule LIMIT 1)
    UNION ALL
    SELECT (SELECT schedule FROM fires WHERE schedule > name ORDER BY schedule LIMIT 1) FROM names WHERE name IS NOT NULL
)
SELECT name FROM names WHERE name IS NOT NULL LIMIT ?2;

-- name: oldest_fires
SELECT fire FROM fires
WHERE schedule = ?1 AND fire_us < (SELECT fire_us FROM fires WHERE schedule = ?1 ORDER BY fire_us DESC LIMIT 1 OFFSET ?2)
    AND fire_us < ?3
ORDER BY fire_us LIMIT ?4;

-- name: forget_fires
DELETE FROM fires WHERE schedule = ? AND fire_us <= ?;

-- name: note_forgotten
INSERT INTO forgotten (schedule, until_us) VALUES (?, ?) ON CONFLICT (schedule) DO UPDATE SET until_us = excluded.until_us;

-- name: forgotten
SELECT until_us FROM forgotten WHERE schedule = ?;

-- name: join_of
SELECT parents_left, stopped FROM joins WHERE child = ? AND fire_us = ?;

-- name: save_join
INSERT INTO joins (child, fire_us, parents_left, stopped) VALUES (?, ?, ?, ?)
ON CONFLICT (child, fire_us) DO UPDATE SET parents_left = excluded.parents_left, stopped = excluded.stopped;

-- name: remove_join
DELETE FROM joins WHERE child = ? AND fire_us = ?;

-- A new one is first seen after the others, also if the clock was set back.
-- name: declare
INSERT INTO declarations (app, digest, first_seen_us, last_seen_us)
SELECT ?1, ?2, max(?3, coalesce((SELECT max(first_seen_us) + 1 FROM declarations WHERE app = ?1), 0)), ?3 WHERE true
ON CONFLICT (app, digest) DO UPDATE SET last_seen_us = excluded.last_seen_us;

-- name: declarations
SELECT app, digest, first_seen_us, last_seen_us FROM declarations WHERE app = ?;
