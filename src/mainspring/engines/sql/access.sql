-- name: credential
SELECT data, used_us FROM credentials WHERE digest = $1;

-- name: token
SELECT data, used_us FROM credentials WHERE token = $1 AND kind = 'ms_';

-- name: lock_credential
SELECT data, used_us FROM credentials WHERE digest = $1 {for_update};

-- name: lock_token
SELECT data, used_us FROM credentials WHERE token = $1 AND kind = 'ms_' {for_update};

-- name: insert_credential
INSERT INTO credentials (digest, kind, token, expires_us, used_us, data) VALUES ($1, $2, $3, $4, $5, $6);

-- name: remove_credential
DELETE FROM credentials WHERE digest = $1;

-- name: replace_credential
UPDATE credentials SET digest = $2, data = $3 WHERE digest = $1;

-- name: remove_sessions
DELETE FROM credentials WHERE token = $1 AND kind = 'mss_';

-- name: revoked
UPDATE revocations SET number = number + 1;

-- name: revocations
SELECT number FROM revocations;

-- name: tokens
SELECT token, data, used_us FROM credentials WHERE token > $1 AND kind = 'ms_' ORDER BY token LIMIT $2;

-- name: acts
SELECT number, at_us, act FROM audit WHERE number < $1 ORDER BY number DESC LIMIT $2;

-- name: acts_of_what
SELECT number, at_us, act FROM audit {index(audit_whats)} WHERE what = $3 AND number < $1 ORDER BY number DESC LIMIT $2;

-- name: acts_of_namespace
SELECT number, at_us, act FROM audit {index(audit_namespaces)} WHERE namespace = $3 AND number < $1 ORDER BY number DESC LIMIT $2;

-- A row that another node inserts at the same time is waited for, so that one of both nodes finds the other's.
-- name: reserve_reply
INSERT INTO replies AS kept (key, request, at_us) VALUES ($1, $2, $3)
ON CONFLICT (key) DO UPDATE SET request = excluded.request, at_us = excluded.at_us, reply = NULL WHERE kept.at_us < $4
RETURNING 1;

-- name: reply
SELECT request, at_us, reply FROM replies WHERE key = $1 AND at_us >= $2;

-- name: keep_reply
UPDATE replies SET reply = $2 WHERE key = $1;

-- name: release_reply
DELETE FROM replies WHERE key = $1 AND reply IS NULL;
