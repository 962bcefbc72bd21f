-- {jobs} jobs, written directly into an empty store: those with the numbers i from 0 on. See filled.py for the kinds.
SET search_path = mainspring;
SET synchronous_commit = off;

INSERT INTO functions (namespace, name)
SELECT 'default', convert_to(CASE WHEN i = 1 THEN 'f' WHEN i < 12 THEN 'f' || (88 + i) ELSE 'rare' || (i - 12) END, 'UTF8')
FROM generate_series(1, 21) AS i ORDER BY i;

CREATE VIEW fill_kinds AS
SELECT i, i % 100 AS k, {begin_us} + i * {step_us} AS created_us,
    CASE WHEN i < 50 THEN 12 + i % 10 WHEN i / 100 % 100 >= 90 THEN i / 100 % 100 - 88 ELSE 1 END AS function,
    CASE WHEN i % 100 < 60 THEN 4 WHEN i % 100 < 90 THEN 1 WHEN i % 100 < 97 THEN 5 ELSE (i % 100 - 91) % 8 END AS state,
    CASE WHEN i % 10 = 0 THEN convert_to('u' || i, 'UTF8') END AS uniq,
    CASE WHEN i BETWEEN 100 AND 105 THEN '\x81a47461677391a673656c646f6d'::bytea
        WHEN i % 100 = 1 THEN '\x81a47461677391a56f6674656e'::bytea
        WHEN i % 100 = 2 THEN '\x81a36b6579c4016b'::bytea END AS options,
    convert_to('{{"type":"' || CASE WHEN i < 100 THEN 'Rare' ELSE 'E' || (i / 100 % 10) END || '","message":"it failed"}}', 'UTF8') AS error
FROM generate_series(0, {jobs}::bigint - 1) AS i;

INSERT INTO jobs (id, place, created_us, due_us, function, input_size, state, priority, slot, uniq, options, payload)
SELECT {first} + i, (i + 1) << 20, created_us, CASE WHEN state = 0 THEN created_us + 2592000000000 END, function, 12, state, 1, 0, uniq,
    options, convert_to('payload 12 b', 'UTF8')
FROM fill_kinds WHERE state IN (0, 1);

INSERT INTO ended (id, ended_us, created_us, term, started_us, function, attempt, suspects, input_size, output_size, priority, uniq,
    options, result, payload)
SELECT {first} + i, created_us + 500000, created_us, 1, created_us + 400000, function, 1, 0, 12, 12, 1, uniq, options,
    convert_to('result of 12', 'UTF8'), convert_to('payload 12 b', 'UTF8')
FROM fill_kinds WHERE state = 4;

INSERT INTO dead (id, place, ended_us, created_us, term, started_us, function, attempt, suspects, input_size, state, priority, slot,
    uniq, options, error, payload)
SELECT {first} + i, (i + 1) << 20, created_us + 500000, created_us, 1, created_us + 400000, function, 1, 0, 12, state, 1, 0, uniq,
    options, CASE WHEN state = 5 THEN error END, convert_to('payload 12 b', 'UTF8')
FROM fill_kinds WHERE state > 4;

DROP VIEW fill_kinds;
SELECT setval('places', {jobs} + 1);

INSERT INTO tags (namespace, tag, job, created_us)
SELECT 'default', CASE WHEN id BETWEEN {first} + 100 AND {first} + 105 THEN 'seldom' ELSE 'often' END, id, created_us
FROM ended WHERE position('tags'::bytea IN options) > 0 ORDER BY 2, 3;

INSERT INTO counts (function, state, priority, number)
SELECT function, state, priority, count(*) FROM (
    SELECT function, state, priority FROM jobs UNION ALL SELECT function, 4, priority FROM ended
    UNION ALL SELECT function, state, priority FROM dead
) AS every GROUP BY 1, 2, 3;

VACUUM (ANALYZE);
CHECKPOINT;
