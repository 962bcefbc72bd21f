-- name: credential
SELECT data, used_us FROM credentials WHERE digest = ?;

-- name: token
SELECT data, used_us FROM credentials WHERE token = ? AND kind = 'ms_';

-- name: insert_credential
INSERT INTO credentials (digest, kind, token, expires_us, used_us, data) VALUES (?, ?, ?, ?, ?, ?);

-- name: remove_credential
DELETE FROM credentials WHERE digest = ?;

-- name: replace_credential
UPDATE credentials SET digest = ?, data = ? WHERE digest = ?;

-- name: remove_sessions
DELETE FROM credentials WHERE token = ? AND kind = 'mss_';

-- name: touch_token
UPDATE credentials SET used_us = max(used_us, ?2) WHERE token = ?1 AND kind = 'ms_';

-- name: revoked
UPDATE revocations SET number = number + 1;

-- name: revocations
SELECT number FROM revocations;

-- name: tokens
SELECT token, data, used_us FROM credentials WHERE token > ? AND kind = 'ms_' ORDER BY token LIMIT ?;

-- name: sweep_credentials
DELETE FROM credentials WHERE digest IN
    (SELECT digest FROM credentials WHERE kind <> 'ms_' AND expires_us < ? AND expires_us > 0 LIMIT ?);

-- name: record_act
INSERT INTO audit (at_us, namespace, what, object, act) VALUES (CAST(unixepoch('subsec') * 1000000 AS INTEGER), ?, ?, ?, ?);

-- name: acts
SELECT number, at_us, act FROM audit WHERE number < ? ORDER BY number DESC LIMIT ?;

-- name: acts_of_what
SELECT number, at_us, act FROM audit INDEXED BY audit_whats WHERE what = ?3 AND number < ?1 ORDER BY number DESC LIMIT ?2;

-- name: acts_of_namespace
SELECT number, at_us, act FROM audit INDEXED BY audit_namespaces
WHERE namespace = ?3 AND number < ?1 ORDER BY number DESC LIMIT ?2;

-- Acts without a number may be on any object.
-- name: acts_on_object
SELECT number, at_us, act FROM audit INDEXED BY audit_objects WHERE object = ?3 AND number < ?1
UNION ALL
SELECT number, at_us, act FROM audit INDEXED BY audit_objects WHERE object IS NULL AND number < ?1
ORDER BY number DESC LIMIT ?2;

-- name: acts_without_number
SELECT number, act FROM audit INDEXED BY audit_objects WHERE object IS NULL ORDER BY number DESC LIMIT ?;

-- name: number_act
UPDATE audit SET object = ? WHERE number = ?;

-- name: sweep_acts
DELETE FROM audit WHERE number IN (SELECT number FROM audit WHERE at_us < ? ORDER BY at_us LIMIT ?);
