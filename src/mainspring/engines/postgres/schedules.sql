-- The statements of the schedules slice. As in jobs.sql: parallel arrays; the caller sorts rows that are locked. `OFFSET 0` keeps
-- the ORDER BY from choosing the index.

-- name: enter
SELECT enter_schedules_2($1);

-- name: specifications_since
SELECT name, schedule FROM specifications WHERE version > $1;

-- name: lock
SELECT name, state FROM schedules WHERE name = ANY ($1::text[]) ORDER BY name FOR NO KEY UPDATE;

-- name: lock_free
SELECT name, state FROM schedules WHERE name = ANY ($1::text[]) ORDER BY name FOR NO KEY UPDATE SKIP LOCKED;

-- name: fires
SELECT f.fire
FROM unnest($1::text[], $2::bigint[]) AS s (schedule, fire_us)
CROSS JOIN LATERAL (SELECT fire FROM fires WHERE schedule = s.schedule AND fire_us = s.fire_us OFFSET 0) AS f;

-- name: unfinished
SELECT fire FROM (SELECT * FROM fires WHERE live = ANY ($1::text[]) OFFSET 0) AS f ORDER BY schedule, fire_us;

-- name: of_jobs
SELECT fire FROM (SELECT * FROM fires WHERE job = ANY ($1::bigint[]) OFFSET 0) AS f ORDER BY schedule, fire_us;

-- name: joins
SELECT j.child, j.fire_us, j.parents_left, j.stopped
FROM unnest($1::text[], $2::bigint[]) AS s (child, fire_us)
CROSS JOIN LATERAL (SELECT * FROM joins WHERE child = s.child AND fire_us = s.fire_us OFFSET 0) AS j;

-- ---- writing ----

-- name: add_schedules
INSERT INTO schedules (name, version, next_us, queued, state)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::int[], $5::bytea[]);

-- name: change_schedules
WITH changed AS (
    UPDATE schedules SET version = s.version, next_us = s.next_us, queued = s.queued, state = s.state
    FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::int[], $5::bytea[], $6::bigint[])
    AS s (name, version, next_us, queued, state, before)
    WHERE schedules.name = ANY (ARRAY[s.name]) AND schedules.version = s.before
    RETURNING 1
)
SELECT count(*) FROM changed;

-- name: remove_schedules
DELETE FROM schedules WHERE name = ANY ($1::text[]);

-- name: respecify
UPDATE catalogue SET version = version + 1 RETURNING version;

-- name: specify
INSERT INTO specifications (name, version, schedule)
SELECT s.name, $1::bigint, s.schedule FROM unnest($2::text[], $3::bytea[]) AS s (name, schedule)
ON CONFLICT (name) DO UPDATE SET version = excluded.version, schedule = excluded.schedule;

-- The second of two concurrent groups fails: a fire time has one row.
-- name: add_fires
INSERT INTO fires (schedule, fire_us, standing, live, job, fire)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::smallint[], $4::text[], $5::bigint[], $6::bytea[]);

-- name: change_fires
UPDATE fires SET standing = s.standing, live = s.live, job = s.job, fire = s.fire
FROM unnest($1::text[], $2::bigint[], $3::smallint[], $4::text[], $5::bigint[], $6::bytea[])
AS s (schedule, fire_us, standing, live, job, fire)
WHERE fires.schedule = ANY (ARRAY[s.schedule]) AND fires.fire_us = ANY (ARRAY[s.fire_us]);

-- name: remove_fires
DELETE FROM fires USING unnest($1::text[], $2::bigint[]) AS s (schedule, fire_us)
WHERE fires.schedule = ANY (ARRAY[s.schedule]) AND fires.fire_us = ANY (ARRAY[s.fire_us]);

-- name: save_joins
INSERT INTO joins (child, fire_us, parents_left, stopped)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::int[], $4::boolean[])
ON CONFLICT (child, fire_us) DO UPDATE SET parents_left = excluded.parents_left, stopped = excluded.stopped;

-- name: remove_joins
DELETE FROM joins USING unnest($1::text[], $2::bigint[]) AS s (child, fire_us)
WHERE joins.child = ANY (ARRAY[s.child]) AND joins.fire_us = ANY (ARRAY[s.fire_us]);

-- A new one is first seen after the others, also if the clock was set back.
-- name: declare
INSERT INTO declarations (app, digest, first_seen_us, last_seen_us)
SELECT $1, $2, greatest($3, (SELECT max(first_seen_us) + 1 FROM declarations WHERE app = $1)), $3
ON CONFLICT (app, digest) DO UPDATE SET last_seen_us = excluded.last_seen_us;

-- name: declarations
SELECT digest, first_seen_us, last_seen_us FROM declarations WHERE app = $1;

-- ---- retention ----

-- From name to name, not from row to row.
-- name: names_of_fires
WITH RECURSIVE names (name) AS (
    (SELECT schedule FROM fires WHERE schedule > $1 ORDER BY schedule LIMIT 1)
    UNION ALL
    SELECT following.schedule FROM names CROSS JOIN LATERAL (
        SELECT schedule FROM fires WHERE schedule > names.name ORDER BY schedule LIMIT 1) AS following
)
SELECT name FROM names LIMIT $2;

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

-- name: note_forgotten
INSERT INTO forgotten (schedule, until_us) SELECT * FROM unnest($1::text[], $2::bigint[])
ON CONFLICT (schedule) DO UPDATE SET until_us = excluded.until_us;

-- name: forgotten
SELECT schedule, until_us FROM forgotten WHERE schedule = ANY ($1::text[]);

-- ---- repairs: states that no transaction could see ----

-- One node at a time, without waiting: the second one finds nothing to do.
-- name: to_repair
WITH mine AS MATERIALIZED (SELECT has_turn(-2, 0) AS so)
SELECT DISTINCT found.name FROM mine CROSS JOIN LATERAL (
    (SELECT schedule AS name FROM fires
        WHERE standing IN (2, 3) AND standing = 2 AND NOT EXISTS (SELECT FROM jobs WHERE jobs.id = ANY (ARRAY[fires.job])) LIMIT $1)
    UNION ALL (SELECT schedule FROM fires WHERE standing IN (2, 3) AND standing = 3 LIMIT $1)
    UNION ALL (SELECT name FROM schedules WHERE queued > 0 LIMIT $1)
) AS found
WHERE mine.so;

-- name: joined
SELECT fire FROM fires
WHERE standing IN (2, 3) AND standing = 2 AND NOT EXISTS (SELECT FROM jobs WHERE jobs.id = ANY (ARRAY[fires.job])) LIMIT $1;

-- name: stuck
SELECT fire FROM fires WHERE standing IN (2, 3) AND standing = 3 LIMIT $1;

-- name: queued
SELECT name FROM schedules WHERE queued > 0 LIMIT $1;

-- ---- reading ----

-- The last row is the first schedule that is due later.
-- name: due_soon
(SELECT name, version, next_us FROM schedules WHERE next_us >= $1 AND next_us <= $2 ORDER BY next_us, name LIMIT $3)
UNION ALL
(SELECT NULL, NULL, next_us FROM schedules WHERE next_us > $2 ORDER BY next_us LIMIT 1);

-- name: due_after
SELECT next_us FROM schedules WHERE next_us IS NOT NULL AND (next_us, name) > ($1::bigint, $2::text) ORDER BY next_us, name LIMIT 1;

-- name: others_due
SELECT name, version, next_us FROM schedules
WHERE next_us IS NOT NULL AND (next_us, name) > ($1::bigint, $2::text) AND next_us <= $3
    AND CASE WHEN strpos(name, E'\x1f') > 0 THEN split_part(name, E'\x1f', 1) ELSE 'default' END <> ALL ($4::text[])
ORDER BY next_us, name LIMIT $5;

-- name: schedules
SELECT s.name, p.schedule, s.state FROM schedules AS s
CROSS JOIN LATERAL (SELECT schedule FROM specifications WHERE name = s.name OFFSET 0) AS p
WHERE s.name > $1
    AND ($3::text = '' OR $3 = CASE WHEN strpos(s.name, E'\x1f') > 0 THEN split_part(s.name, E'\x1f', 1) ELSE 'default' END)
ORDER BY s.name LIMIT $2;

-- name: schedules_named
SELECT s.name, p.schedule, s.state FROM schedules AS s
CROSS JOIN LATERAL (SELECT schedule FROM specifications WHERE name = s.name OFFSET 0) AS p
WHERE s.name > $1 AND s.name = ANY ($3::text[]) ORDER BY s.name LIMIT $2;

-- A schedule's rows come in the order of the arrays, and of each the oldest first: the nested loop reads them so.
-- name: newest_fires
SELECT f.fire
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS s (schedule, before_us, since_us)
CROSS JOIN LATERAL (
    SELECT fire FROM fires
    WHERE schedule = s.schedule AND fire_us < s.before_us AND fire_us >= s.since_us
        AND fire_us >= coalesce((
            SELECT fire_us FROM fires WHERE schedule = s.schedule AND fire_us < s.before_us AND fire_us >= s.since_us
            ORDER BY fire_us DESC OFFSET $4 LIMIT 1
        ), 0)
    ORDER BY fire_us LIMIT $5) AS f
LIMIT $5;

-- name: last_outcomes
SELECT f.fire
FROM unnest($1::text[]) AS s (schedule)
CROSS JOIN LATERAL (
    SELECT fire FROM (SELECT fire, standing FROM fires WHERE schedule = s.schedule ORDER BY fire_us DESC LIMIT $2) AS newest
    WHERE standing >= 3 LIMIT 1) AS f;

-- name: history
SELECT fire_us, fire FROM fires WHERE schedule = $1 AND fire_us < $2 ORDER BY fire_us DESC LIMIT $3;
