-- name: credential
SELECT data, used_us FROM credentials WHERE digest = $1;

-- name: token
SELECT data, used_us FROM credentials WHERE token = $1 AND kind = 'ms_';

-- name: lock_credential
SELECT data, used_us FROM credentials WHERE digest = $1 FOR UPDATE;

-- name: lock_token
SELECT data, used_us FROM credentials WHERE token = $1 AND kind = 'ms_' FOR UPDATE;

-- name: insert_credential
INSERT INTO credentials (digest, kind, token, expires_us, used_us, data) VALUES ($1, $2, $3, $4, $5, $6);

-- name: remove_credential
DELETE FROM credentials WHERE digest = $1;

-- name: replace_credential
UPDATE credentials SET digest = $2, data = $3 WHERE digest = $1;

-- name: remove_sessions
DELETE FROM credentials WHERE token = $1 AND kind = 'mss_';

-- The order of rows prevents deadlocks between nodes.
-- name: touch_tokens
UPDATE credentials SET used_us = greatest(credentials.used_us, used.used_us)
FROM unnest($1::text[], $2::bigint[]) AS used (token, used_us)
WHERE credentials.token = used.token AND kind = 'ms_' AND credentials.digest = ANY (ARRAY(
    SELECT digest FROM credentials WHERE token = ANY ($1) AND kind = 'ms_' ORDER BY digest FOR UPDATE SKIP LOCKED));

-- name: revoked
UPDATE revocations SET number = number + 1;

-- name: revocations
SELECT number FROM revocations;

-- name: tokens
SELECT token, data, used_us FROM credentials WHERE token > $1 AND kind = 'ms_' ORDER BY token LIMIT $2;

-- name: sweep_credentials
WITH gone AS (DELETE FROM credentials WHERE digest = ANY (ARRAY(
    SELECT digest FROM credentials WHERE kind <> 'ms_' AND expires_us < $1 AND expires_us > 0
    LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING 1)
SELECT count(*) FROM gone;

-- name: record_acts
INSERT INTO audit (namespace, what, object, act) SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[]);

-- name: acts
SELECT number, at_us, act FROM audit WHERE number < $1 ORDER BY number DESC LIMIT $2;

-- name: acts_of_what
SELECT number, at_us, act FROM audit WHERE what = $3 AND number < $1 ORDER BY number DESC LIMIT $2;

-- name: acts_of_namespace
SELECT number, at_us, act FROM audit WHERE namespace = $3 AND number < $1 ORDER BY number DESC LIMIT $2;

-- Acts without a number may be on any object. Without the column in the order, the planner would sort all of them.
-- name: acts_on_object
(SELECT number, at_us, act FROM audit WHERE object = $3 AND number < $1 ORDER BY number DESC LIMIT $2)
UNION ALL
(SELECT number, at_us, act FROM audit WHERE object IS NULL AND number < $1 ORDER BY object DESC, number DESC LIMIT $2)
ORDER BY number DESC LIMIT $2;

-- name: acts_without_number
SELECT number, act FROM audit WHERE object IS NULL ORDER BY object DESC, number DESC LIMIT $1 FOR UPDATE SKIP LOCKED;

-- name: number_acts
UPDATE audit SET object = found.object FROM unnest($1::bigint[], $2::bigint[]) AS found (number, object)
WHERE audit.number = found.number;

-- name: sweep_acts
WITH gone AS (DELETE FROM audit WHERE number = ANY (ARRAY(
    SELECT number FROM audit WHERE at_us < $1 ORDER BY at_us LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING 1)
SELECT count(*) FROM gone;
