-- name: limits
SELECT function, version, said FROM limits WHERE function > $1 ORDER BY function LIMIT $2;

-- name: save_limits
INSERT INTO limits AS stored (function, version, said) VALUES ($1, $2, $3)
ON CONFLICT (function) DO UPDATE SET version = excluded.version, said = excluded.said
WHERE stored.version = excluded.version - 1
RETURNING said, version;

-- name: limits_of
SELECT said, version FROM limits WHERE function = $1;

-- A group waits for concurrent requests in the same pool, and gets the time after the wait. The order of pools prevents deadlocks.
-- name: lock_pools
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM lock_pools($1::int[], $2::bytea[]);

-- name: holdings
SELECT t.function, t.pool, t.term, t.number, t.wanted, t.asked_us
FROM unnest($1::int[], $2::bytea[]) AS asked (function, pool)
JOIN tokens t USING (function, pool) JOIN terms ON terms.term = t.term
WHERE NOT terms.ended;

-- name: exhausted
SELECT t.pool FROM tokens t JOIN terms ON terms.term = t.term
WHERE t.function = $1 AND t.pool = ANY ($2::bytea[]) AND t.term <> $3 AND NOT terms.ended
GROUP BY t.pool HAVING sum(t.number) >= $4;

-- name: hold
INSERT INTO tokens (function, pool, term, number, wanted, asked_us)
SELECT * FROM unnest($1::int[], $2::bytea[], $3::bigint[], $4::int[], $5::int[], $6::bigint[])
ON CONFLICT (function, pool, term) DO UPDATE SET number = excluded.number, wanted = excluded.wanted, asked_us = excluded.asked_us;

-- name: let_go
DELETE FROM tokens t USING unnest($1::int[], $2::bytea[], $3::bigint[]) AS gone (function, pool, term)
WHERE t.function = gone.function AND t.pool = gone.pool AND t.term = gone.term;

-- name: forget_terms
DELETE FROM tokens t USING terms WHERE terms.term = t.term AND terms.ended;

-- name: buckets
SELECT b.function, b.pool, b.number, b.per_us, b.burst, b.level, b.updated_us
FROM unnest($1::int[], $2::bytea[]) AS asked (function, pool) JOIN buckets b USING (function, pool);

-- name: fill
INSERT INTO buckets (function, pool, number, per_us, burst, level, updated_us)
SELECT * FROM unnest($1::int[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
ON CONFLICT (function, pool) DO UPDATE SET
    number = excluded.number, per_us = excluded.per_us, burst = excluded.burst, level = excluded.level,
    updated_us = excluded.updated_us;

-- From key to key, from above one ('' is before all of them) up to and including another (NULL: to the end).
-- name: keys
SELECT level.priority, k.key
FROM unnest($2::smallint[], $3::bytea[], $4::bytea[]) AS level (priority, after, upto)
CROSS JOIN LATERAL (
    WITH RECURSIVE met AS (
        (SELECT key FROM jobs
         WHERE state = 1 AND function = $1 AND priority = level.priority AND key IS NOT NULL AND key > level.after
         ORDER BY key LIMIT 1)
        UNION ALL
        SELECT (
            SELECT j.key FROM jobs AS j
            WHERE j.state = 1 AND j.function = $1 AND j.priority = level.priority AND j.key IS NOT NULL AND j.key > met.key
            ORDER BY j.key LIMIT 1)
        FROM met WHERE met.key IS NOT NULL AND (level.upto IS NULL OR met.key < level.upto)
    )
    SELECT key FROM met WHERE key IS NOT NULL AND (level.upto IS NULL OR key <= level.upto) LIMIT $5
) AS k;

-- The turns are those of the arrays; of each key the oldest jobs. The key is a range, so that the ORDER BY needs the index of
-- keys: with an equality, a plan made while the table was empty might scan all jobs in the order of their places.
-- name: claim_of_keys
WITH picked AS MATERIALIZED (
    SELECT p.id, w.turn
    FROM unnest($3::smallint[], $4::bytea[]) WITH ORDINALITY AS w (priority, key, turn)
    CROSS JOIN LATERAL (
        SELECT id FROM jobs
        WHERE state = 1 AND function = $2 AND priority = w.priority AND key BETWEEN w.key AND w.key AND key IS NOT NULL
            AND ($7::bytea IS NULL OR get_bit($7, slot) = 1 OR greatest(created_us, due_us) < $8)
        ORDER BY key, place LIMIT $5 FOR UPDATE SKIP LOCKED) AS p
    LIMIT $6
)
UPDATE jobs SET state = 2, term = $1
FROM picked WHERE jobs.id = ANY (ARRAY[picked.id])
RETURNING jobs.id, function, state, priority, uniq, created_us, due_us, expires_us, started_us, ended_us, term, attempt, suspects,
    input_size, 0, options, error, NULL::bytea, payload, foreground, turn, place;

-- Jobs that were stored without a key, among the longest due: nodes of versions without keys store them so.
-- name: claim_of_none
WITH picked AS MATERIALIZED (
    SELECT p.id FROM (
        SELECT id, key, slot, created_us, due_us FROM jobs
        WHERE state = 1 AND function = $2 AND priority = $3 ORDER BY place LIMIT 1000) AS old
    CROSS JOIN LATERAL (
        SELECT id FROM jobs WHERE id = ANY (ARRAY[old.id]) AND state = 1 OFFSET 0 FOR UPDATE SKIP LOCKED) AS p
    WHERE old.key IS NULL
        AND ($5::bytea IS NULL OR get_bit($5, old.slot) = 1 OR greatest(old.created_us, old.due_us) < $6)
    LIMIT $4
)
UPDATE jobs SET state = 2, term = $1
FROM picked WHERE jobs.id = ANY (ARRAY[picked.id])
RETURNING jobs.id, function, state, priority, uniq, created_us, due_us, expires_us, started_us, ended_us, term, attempt, suspects,
    input_size, 0, options, error, NULL::bytea, payload, foreground, 0::bigint, place;
