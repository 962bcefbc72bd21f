-- name: generation
SELECT generation FROM schedule_changes;

-- name: lock_generation
SELECT generation FROM schedule_changes FOR UPDATE;

-- name: next_generation
UPDATE schedule_changes SET generation = generation + 1;

-- name: specifications
SELECT name, schedule FROM schedules;

-- name: lock_schedules
SELECT name, schedule, state FROM schedules WHERE name = ANY ($1::text[]) ORDER BY name FOR UPDATE;

-- name: lock_families
SELECT pg_advisory_xact_lock(key) FROM (
    SELECT DISTINCT hashtextextended(leader, 3) AS key FROM unnest($1::text[]) AS s (leader) ORDER BY key) AS keys;

-- name: take_turns
SELECT FROM schedules WHERE name = ANY ($1::text[]) ORDER BY name FOR UPDATE;

-- name: all_schedules
SELECT schedule, state FROM schedules ORDER BY name COLLATE "C";

-- name: named_schedules
SELECT schedule, state FROM schedules WHERE name = ANY ($1::text[]) ORDER BY name COLLATE "C";

-- name: save_schedules
INSERT INTO schedules (name, next_us, version, queued, schedule, state)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::int[], $5::bytea[], $6::bytea[])
ON CONFLICT (name) DO UPDATE
SET next_us = excluded.next_us, version = excluded.version, queued = excluded.queued, schedule = excluded.schedule,
    state = excluded.state;

-- Of a schedule that only fires, what users say is not written again.
-- name: move_schedules
UPDATE schedules AS x SET next_us = s.next_us, version = s.version, queued = s.queued, state = s.state
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::int[], $5::bytea[]) AS s (name, next_us, version, queued, state)
WHERE x.name = s.name;

-- name: remove_schedules
DELETE FROM schedules WHERE name = ANY ($1::text[]);

-- name: due_schedules
SELECT name, version, next_us FROM schedules WHERE next_us IS NOT NULL AND next_us <= $1
ORDER BY next_us, name LIMIT $2;

-- name: next_schedule
SELECT next_us FROM schedules WHERE next_us IS NOT NULL AND (next_us, name) > ($1, $2) ORDER BY next_us, name LIMIT 1;

-- name: next_schedule_after
SELECT next_us FROM schedules WHERE next_us IS NOT NULL AND next_us > $1 ORDER BY next_us, name LIMIT 1;

-- name: queued_schedules
SELECT name FROM schedules WHERE queued > 0 ORDER BY name LIMIT $1;

-- name: lock_fires
SELECT f.fire FROM fires AS f
JOIN unnest($1::text[], $2::bigint[]) AS s (schedule, fire_us) ON f.schedule = s.schedule AND f.fire_us = s.fire_us
ORDER BY f.schedule, f.fire_us FOR UPDATE OF f;

-- name: unfinished
SELECT fire FROM fires WHERE schedule = ANY ($1::text[]) AND standing < 4 ORDER BY schedule, fire_us;

-- name: fires_of_jobs
SELECT fire FROM fires WHERE job = ANY ($1::bigint[]) AND standing BETWEEN 1 AND 2 ORDER BY schedule, fire_us FOR UPDATE;

-- name: new_fires
INSERT INTO fires (schedule, fire_us, standing, job, fire)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bytea[]);

-- name: save_fires
UPDATE fires AS f SET standing = s.standing, job = s.job, fire = s.fire
FROM unnest($1::text[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bytea[]) AS s (schedule, fire_us, standing, job, fire)
WHERE f.schedule = s.schedule AND f.fire_us = s.fire_us;

-- name: history
SELECT fire FROM fires WHERE schedule = $1 AND fire_us < $2 ORDER BY fire_us DESC LIMIT $3;

-- Runs whose job does not live any more, although nobody has ended them.
-- name: abandoned
SELECT fire FROM fires AS f
WHERE standing BETWEEN 1 AND 2 AND NOT EXISTS (SELECT FROM jobs WHERE jobs.id = f.job) LIMIT $1;

-- name: stuck
SELECT fire FROM fires WHERE standing = 3 ORDER BY schedule, fire_us LIMIT $1;

-- There may be no row to lock yet.
-- name: lock_joins
SELECT pg_advisory_xact_lock(key) FROM (
    SELECT DISTINCT hashtextextended(child || ' ' || fire_us, 4) AS key
    FROM unnest($1::text[], $2::bigint[]) AS s (child, fire_us) ORDER BY key) AS keys;

-- name: joins
SELECT j.child, j.fire_us, j.parents_left, j.stopped FROM joins AS j
JOIN unnest($1::text[], $2::bigint[]) AS s (child, fire_us) ON j.child = s.child AND j.fire_us = s.fire_us;

-- name: save_joins
INSERT INTO joins (child, fire_us, parents_left, stopped)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::int[], $4::boolean[])
ON CONFLICT (child, fire_us) DO UPDATE SET parents_left = excluded.parents_left, stopped = excluded.stopped;

-- name: remove_joins
DELETE FROM joins AS j USING unnest($1::text[], $2::bigint[]) AS s (child, fire_us)
WHERE j.child = s.child AND j.fire_us = s.fire_us;

-- name: declare
INSERT INTO declarations (app, digest, first_seen_us, last_seen_us) VALUES ($1, $2, $3, $3)
ON CONFLICT (app, digest) DO UPDATE SET last_seen_us = excluded.last_seen_us;

-- name: declarations
SELECT digest, first_seen_us, last_seen_us FROM declarations WHERE app = $1;
