-- {jobs} jobs, written directly into an empty store: those with the numbers i from 0 on. See filled.py for the kinds.
PRAGMA journal_mode = DELETE;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -262144;
BEGIN;

WITH RECURSIVE numbers (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < 21)
INSERT INTO functions (id, namespace, name)
SELECT i, 'default', CAST(CASE WHEN i = 1 THEN 'f' WHEN i < 12 THEN 'f' || (88 + i) ELSE 'rare' || (i - 12) END AS BLOB) FROM numbers;

WITH RECURSIVE numbers (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM numbers WHERE i < {jobs} - 1),
kinds AS (
    SELECT i, i % 100 AS k, CAST({begin_us} + i * {step_us} AS INTEGER) AS created_us,
        CASE WHEN i < 50 THEN 12 + i % 10 WHEN i / 100 % 100 >= 90 THEN i / 100 % 100 - 88 ELSE 1 END AS function,
        CASE WHEN i % 100 < 60 THEN 4 WHEN i % 100 < 90 THEN 1 WHEN i % 100 < 97 THEN 5 ELSE (i % 100 - 91) % 8 END AS state
    FROM numbers
)
INSERT INTO jobs (id, function, state, priority, uniq, created_us, due_us, started_us, ended_us, term, attempt, input_size, output_size,
    options, payload, result, error, key)
SELECT {first} + i, function, state, 1, CASE WHEN k % 10 = 0 THEN CAST('u' || i AS BLOB) END, created_us,
    CASE WHEN state = 0 THEN created_us + 2592000000000 ELSE 0 END,
    CASE WHEN state > 3 THEN created_us + 400000 ELSE 0 END, CASE WHEN state > 3 THEN created_us + 500000 ELSE 0 END,
    state = 4, state > 3, 12, CASE WHEN state = 4 THEN 12 ELSE 0 END,
    CASE WHEN i BETWEEN 100 AND 105 THEN x'81a47461677391a673656c646f6d' WHEN k = 1 THEN x'81a47461677391a56f6674656e' END,
    CAST('payload 12 b' AS BLOB), CASE WHEN state = 4 THEN CAST('result of 12' AS BLOB) END,
    CASE WHEN state = 5 THEN CAST('{{"type":"' || CASE WHEN i < 100 THEN 'Rare' ELSE 'E' || (i / 100 % 10) END
        || '","message":"it failed"}}' AS BLOB) END,
    CASE WHEN k = 2 THEN CAST('k' AS BLOB) END
FROM kinds;

INSERT INTO tags (namespace, tag, job)
SELECT 'default', CASE WHEN id BETWEEN {first} + 100 AND {first} + 105 THEN 'seldom' ELSE 'often' END, id
FROM jobs WHERE options IS NOT NULL ORDER BY 2, 3;

INSERT INTO counts (function, state, priority, number) SELECT function, state, priority, count(*) FROM jobs GROUP BY 1, 2, 3;

COMMIT;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
