-- name: next_schedule
SELECT next_us FROM schedules {index(schedules_due)}
WHERE next_us IS NOT NULL AND (next_us, name) > ($1, $2) ORDER BY next_us, name LIMIT 1;

-- name: others_due
SELECT name, version, next_us FROM schedules {index(schedules_due)}
WHERE next_us IS NOT NULL AND (next_us, name) > ($1, $2) AND next_us <= $3 AND NOT {namespace} {among($4, text)}
ORDER BY next_us, name LIMIT $5;

-- name: schedules
SELECT name, schedule, state FROM {specified} WHERE name > $1 AND (CAST($3 AS text) = '' OR {namespace} = $3) ORDER BY name LIMIT $2;

-- name: named_schedules
SELECT name, schedule, state FROM {specified} WHERE name > $1 AND name {among($3, text)} ORDER BY name LIMIT $2;

-- name: queued_schedules
SELECT name FROM schedules {index(schedules_queued)} WHERE queued > 0 LIMIT $1;

-- name: history
SELECT fire_us, fire FROM fires WHERE schedule = $1 AND fire_us < $2 ORDER BY fire_us DESC LIMIT $3;

-- name: stuck_fires
SELECT fire FROM fires {index(fires_to_mend)} WHERE standing = 3 AND {to_mend} LIMIT $1;

-- From name to name, not from row to row.
-- name: names_of_fires
WITH RECURSIVE names (name) AS (
    SELECT (SELECT schedule FROM fires WHERE schedule > $1 ORDER BY schedule LIMIT 1)
    UNION ALL
    SELECT (SELECT schedule FROM fires WHERE schedule > name ORDER BY schedule LIMIT 1) FROM names WHERE name IS NOT NULL
)
SELECT name FROM names WHERE name IS NOT NULL LIMIT $2;

-- name: note_forgotten
INSERT INTO forgotten (schedule, until_us) {rows(text, bigint)}
ON CONFLICT (schedule) DO UPDATE SET until_us = excluded.until_us;

-- name: save_joins
INSERT INTO joins (child, fire_us, parents_left, stopped) {rows(text, bigint, int, boolean)}
ON CONFLICT (child, fire_us) DO UPDATE SET parents_left = excluded.parents_left, stopped = excluded.stopped;

-- A new one is first seen after the others, also if the clock was set back.
-- name: declare
INSERT INTO declarations (app, digest, first_seen_us, last_seen_us)
SELECT $1, $2, coalesce((SELECT max(first_seen_us) + 1 FROM declarations WHERE app = $1 AND first_seen_us >= $3), $3), $3 WHERE true
ON CONFLICT (app, digest) DO UPDATE SET last_seen_us = excluded.last_seen_us;

-- name: declarations
SELECT digest, first_seen_us, last_seen_us FROM declarations WHERE app = $1;
