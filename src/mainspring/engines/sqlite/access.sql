-- No other program writes.
-- part: for_update
;

-- name: touch_tokens
UPDATE credentials SET used_us = max(used_us, $2) WHERE token = $1 AND kind = 'ms_';

-- name: sweep_credentials
DELETE FROM credentials WHERE digest IN
    (SELECT digest FROM credentials WHERE kind <> 'ms_' AND expires_us < $1 AND expires_us > 0 LIMIT $2);

-- name: record_acts
INSERT INTO audit (at_us, namespace, what, object, act) VALUES (CAST(unixepoch('subsec') * 1000000 AS INTEGER), $1, $2, $3, $4);

-- name: acts_on_object
SELECT number, at_us, act FROM audit INDEXED BY audit_objects WHERE object = $3 AND number < $1 ORDER BY number DESC LIMIT $2;

-- name: sweep_acts
DELETE FROM audit WHERE number IN (SELECT number FROM audit WHERE at_us < $1 ORDER BY at_us LIMIT $2);

-- name: sweep_replies
DELETE FROM replies WHERE key IN (SELECT key FROM replies WHERE at_us < $1 ORDER BY at_us LIMIT $2);
