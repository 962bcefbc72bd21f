-- part: for_update
FOR UPDATE;

-- The order of rows prevents deadlocks between nodes.
-- name: touch_tokens
UPDATE credentials SET used_us = greatest(credentials.used_us, used.used_us)
FROM unnest($1::text[], $2::bigint[]) AS used (token, used_us)
WHERE credentials.token = used.token AND kind = 'ms_' AND credentials.digest = ANY (ARRAY(
    SELECT digest FROM credentials WHERE token = ANY ($1) AND kind = 'ms_' ORDER BY digest FOR UPDATE SKIP LOCKED));

-- name: sweep_credentials
DELETE FROM credentials WHERE digest = ANY (ARRAY(
    SELECT digest FROM credentials WHERE kind <> 'ms_' AND expires_us < $1 AND expires_us > 0 LIMIT $2 FOR UPDATE SKIP LOCKED));

-- name: record_acts
INSERT INTO audit (namespace, what, object, act) {rows(text, text, bigint, bytea)};

-- name: acts_on_object
SELECT number, at_us, act FROM audit WHERE object = $3 AND number < $1 ORDER BY object DESC, number DESC LIMIT $2;

-- name: sweep_acts
DELETE FROM audit WHERE number = ANY (ARRAY(
    SELECT number FROM audit WHERE at_us < $1 ORDER BY at_us LIMIT $2 FOR UPDATE SKIP LOCKED));

-- name: sweep_replies
DELETE FROM replies WHERE key = ANY (ARRAY(SELECT key FROM replies WHERE at_us < $1 ORDER BY at_us LIMIT $2 FOR UPDATE SKIP LOCKED));
