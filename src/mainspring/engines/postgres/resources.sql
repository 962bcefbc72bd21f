-- name: limits
SELECT said FROM limits;

-- name: save_limits
INSERT INTO limits AS stored (function, version, said) VALUES ($1, $2, $3)
ON CONFLICT (function) DO UPDATE SET version = excluded.version, said = excluded.said
WHERE stored.version = excluded.version - 1
RETURNING said;

-- name: limits_of
SELECT said FROM limits WHERE function = $1;

-- Whoever asks in a pool waits for those who ask in it at the same moment; in the order of pools, so that nobody waits for ever.
-- name: lock_pools
SELECT pg_advisory_xact_lock(hashtextextended(format('%s:%s:%s', current_schema(), function, encode(pool, 'hex')), 0))
FROM (SELECT DISTINCT function, pool FROM unnest($1::int[], $2::bytea[]) AS asked (function, pool) ORDER BY 1, 2) AS pools;

-- name: now_us
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- name: holdings
SELECT t.function, t.pool, t.term, t.number, t.wanted, t.asked_us
FROM unnest($1::int[], $2::bytea[]) AS asked (function, pool)
JOIN tokens t USING (function, pool) JOIN terms ON terms.term = t.term
WHERE NOT terms.ended;

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
