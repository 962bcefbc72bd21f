-- As in jobs.sql: parallel arrays; the caller sorts rows that are locked. `OFFSET 0` keeps the ORDER BY from choosing the index.

-- part: specified
schedules AS s CROSS JOIN LATERAL (SELECT schedule FROM specifications WHERE name = s.name OFFSET 0) AS p;
-- part: namespace
CASE WHEN strpos(name, E'\x1f') > 0 THEN split_part(name, E'\x1f', 1) ELSE 'default' END;
-- part: to_mend
standing IN (2, 3);

-- The last row is the first schedule that is due later: another statement would be another way to the server and back.
-- name: due_schedules
SELECT * FROM (
    SELECT name, version, next_us FROM schedules
    WHERE next_us >= $1 AND next_us <= $2 ORDER BY next_us, name LIMIT $3) AS due
UNION ALL
SELECT NULL, NULL, next_us FROM (
    SELECT next_us FROM schedules WHERE next_us > $2 ORDER BY next_us LIMIT 1) AS later;

-- name: enter_schedules
SELECT enter_schedules_2($1);

-- name: specifications_since
SELECT name, schedule FROM specifications WHERE version > $1;

-- name: lock_schedules
SELECT name, state FROM schedules WHERE name = ANY ($1::text[]) ORDER BY name FOR NO KEY UPDATE;

-- name: lock_free_schedules
SELECT name, state FROM schedules WHERE name = ANY ($1::text[]) ORDER BY name FOR NO KEY UPDATE SKIP LOCKED;

-- name: fires
SELECT s.schedule, s.fire_us, f.fire
FROM unnest($1::text[], $2::bigint[]) AS s (schedule, fire_us)
CROSS JOIN LATERAL (SELECT fire FROM fires WHERE schedule = s.schedule AND fire_us = s.fire_us OFFSET 0) AS f;

-- name: unfinished_fires
SELECT fire FROM (SELECT * FROM fires WHERE live = ANY ($1::text[]) OFFSET 0) AS f ORDER BY schedule, fire_us;

-- name: fires_of_jobs
SELECT fire FROM (SELECT * FROM fires WHERE job = ANY ($1::bigint[]) OFFSET 0) AS f ORDER BY schedule, fire_us;

-- name: joins
SELECT j.child, j.fire_us, j.parents_left, j.stopped
FROM unnest($1::text[], $2::bigint[]) AS s (child, fire_us)
CROSS JOIN LATERAL (SELECT * FROM joins WHERE child = s.child AND fire_us = s.fire_us OFFSET 0) AS j;

-- ---- writing ----

-- name: add_schedules
INSERT INTO schedules (name, version, next_us, queued, state) {rows(text, bigint, bigint, int, bytea)};

-- name: change_schedules
UPDATE schedules SET version = s.version, next_us = s.next_us, queued = s.queued, state = s.state
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::int[], $5::bytea[], $6::bigint[])
AS s (name, version, next_us, queued, state, before)
WHERE schedules.name = ANY (ARRAY[s.name]) AND schedules.version = s.before;

-- name: remove_schedules
DELETE FROM schedules WHERE name = ANY ($1::text[]);

-- name: respecify
UPDATE catalogue SET version = version + 1 RETURNING version;

-- name: specify
INSERT INTO specifications (name, version, schedule) {rows(text, bigint, bytea)}
ON CONFLICT (name) DO UPDATE SET version = excluded.version, schedule = excluded.schedule;

-- The second of two concurrent groups fails: a fire time has one row.
-- name: new_fires
INSERT INTO fires (schedule, fire_us, standing, live, job, fire)
SELECT schedule, fire_us, standing, CASE WHEN standing < 4 THEN schedule END, job, fire
FROM unnest($1::text[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bytea[]) AS s (schedule, fire_us, standing, job, fire);

-- name: save_fires
UPDATE fires SET standing = s.standing, live = CASE WHEN s.standing < 4 THEN s.schedule END, job = s.job, fire = s.fire
FROM unnest($1::text[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bytea[]) AS s (schedule, fire_us, standing, job, fire)
WHERE fires.schedule = ANY (ARRAY[s.schedule]) AND fires.fire_us = ANY (ARRAY[s.fire_us]);

-- name: remove_fires
DELETE FROM fires USING unnest($1::text[], $2::bigint[]) AS s (schedule, fire_us)
WHERE fires.schedule = ANY (ARRAY[s.schedule]) AND fires.fire_us = ANY (ARRAY[s.fire_us]);

-- name: remove_joins
DELETE FROM joins USING unnest($1::text[], $2::bigint[]) AS s (child, fire_us)
WHERE joins.child = ANY (ARRAY[s.child]) AND joins.fire_us = ANY (ARRAY[s.fire_us]);

-- ---- retention ----

-- name: oldest_fires
SELECT old.fire
FROM unnest($1::text[]) AS s (name)
CROSS JOIN LATERAL (SELECT fire_us FROM fires WHERE schedule = s.name ORDER BY fire_us DESC OFFSET $2 LIMIT 1) AS kept
CROSS JOIN LATERAL (
    SELECT fire FROM fires WHERE schedule = s.name AND fire_us < kept.fire_us AND fire_us < $3 ORDER BY fire_us LIMIT $4) AS old
LIMIT $4;

-- name: forget_fires
DELETE FROM fires USING unnest($1::text[], $2::bigint[]) AS s (schedule, until_us)
WHERE fires.schedule = ANY (ARRAY[s.schedule]) AND fires.fire_us <= s.until_us;

-- name: forgotten
SELECT schedule, until_us FROM forgotten WHERE schedule = ANY ($1::text[]);

-- ---- repairs: states that no transaction could see ----

-- One node at a time, without waiting: the second one finds nothing to do.
-- name: to_repair
WITH mine AS MATERIALIZED (SELECT has_turn(-2, 0) AS so)
SELECT DISTINCT found.name FROM mine CROSS JOIN LATERAL (
    (SELECT schedule AS name FROM fires
        WHERE {to_mend} AND standing = 2 AND NOT EXISTS (SELECT FROM jobs WHERE jobs.id = ANY (ARRAY[fires.job])) LIMIT $1)
    UNION ALL (SELECT schedule FROM fires WHERE {to_mend} AND standing = 3 LIMIT $1)
    UNION ALL (SELECT name FROM schedules WHERE queued > 0 LIMIT $1)
) AS found
WHERE mine.so;

-- name: joined_fires
SELECT fire FROM fires
WHERE {to_mend} AND standing = 2 AND NOT EXISTS (SELECT FROM jobs WHERE jobs.id = ANY (ARRAY[fires.job])) LIMIT $1;

-- ---- reading ----

-- A schedule's rows come in the order of the JSON, and of each the oldest first: the nested loop reads them so.
-- name: newest_fires
SELECT f.fire
FROM jsonb_array_elements($1::jsonb) AS s
CROSS JOIN LATERAL (
    SELECT fire FROM fires
    WHERE schedule = s ->> 0 AND fire_us < (s ->> 1)::bigint AND fire_us >= (s ->> 2)::bigint
        AND fire_us >= coalesce((
            SELECT fire_us FROM fires WHERE schedule = s ->> 0 AND fire_us < (s ->> 1)::bigint AND fire_us >= (s ->> 2)::bigint
            ORDER BY fire_us DESC OFFSET $2 LIMIT 1
        ), 0)
    ORDER BY fire_us LIMIT $3) AS f
LIMIT $3;

-- name: last_outcomes
SELECT f.fire
FROM unnest($1::text[]) AS s (schedule)
CROSS JOIN LATERAL (
    SELECT fire FROM (SELECT fire, standing FROM fires WHERE schedule = s.schedule ORDER BY fire_us DESC LIMIT $2) AS newest
    WHERE standing >= 3 LIMIT 1) AS f;
