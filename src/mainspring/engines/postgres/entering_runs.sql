-- Runs that enter the store from another one.

-- The store's identity: a digest of a number that is chosen at random when its schema is created.
-- name: identity
SELECT sha256(value) FROM secrets WHERE name = 'channels';

-- No node begins a term meanwhile, and an earlier call that is still about to commit has ended.
-- name: lock_terms
LOCK TABLE terms IN SHARE ROW EXCLUSIVE MODE;

-- The term 0 is that of users' transactions, in every store.
-- name: has_terms
SELECT EXISTS (SELECT FROM terms WHERE term > 0);

-- name: entered
SELECT value FROM secrets WHERE name = 'entered_runs';

-- name: has_payloads
SELECT EXISTS (SELECT FROM payloads);

-- name: note_entered
INSERT INTO secrets (name, value) VALUES ('entered_runs', $1);

-- A node of an earlier version would go on with paused runs.
-- name: need_version_of_pauses
UPDATE migrations SET compatible_from = 41
WHERE number = 41 AND EXISTS (SELECT FROM runs_open WHERE paused_us IS NOT NULL);

-- name: terms
INSERT INTO terms (term, node, ended) OVERRIDING SYSTEM VALUE
SELECT term, node, true FROM unnest($1::bigint[], $2::text[]) AS s (term, node);

-- name: next_term
SELECT setval(pg_get_serial_sequence('terms', 'term'), (SELECT max(term) FROM terms));

-- Each group of submissions has 2^20 places. So many groups at once have room for all jobs, and are before all later ones.
-- name: places
SELECT (setval('places', nextval('places') + 1048576) - 1048576) << 20;

-- name: add_counts
INSERT INTO counts AS c (function, state, priority, number)
SELECT * FROM unnest($1::int[], $2::smallint[], $3::smallint[], $4::bigint[]) AS s (function, state, priority, number)
ON CONFLICT (function, state, priority) DO UPDATE SET number = c.number + excluded.number;
