-- A row that another node inserts at the same time is waited for, so that one of both nodes finds the other's.
-- name: reserve_reply
INSERT INTO replies AS kept (key, request, at_us) VALUES ($1, $2, $3)
ON CONFLICT (key) DO UPDATE SET request = excluded.request, at_us = excluded.at_us, reply = NULL WHERE kept.at_us < $4
RETURNING true;

-- name: reply
SELECT request, at_us, reply FROM replies WHERE key = $1 AND at_us >= $2;

-- name: keep_reply
UPDATE replies SET reply = $2 WHERE key = $1;

-- name: release_reply
DELETE FROM replies WHERE key = $1 AND reply IS NULL;

-- name: sweep_replies
WITH old AS (
    DELETE FROM replies WHERE key = ANY (ARRAY(
        SELECT key FROM replies WHERE at_us < $1 ORDER BY at_us LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING 1)
SELECT count(*) FROM old;
