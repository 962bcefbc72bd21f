-- name: reply
SELECT request, at_us, reply FROM replies WHERE key = ? AND at_us >= ?;

-- name: reserve_reply
INSERT OR REPLACE INTO replies (key, request, at_us, reply) VALUES (?, ?, ?, NULL);

-- name: keep_reply
UPDATE replies SET reply = ? WHERE key = ?;

-- name: release_reply
DELETE FROM replies WHERE key = ? AND reply IS NULL;

-- name: sweep_replies
DELETE FROM replies WHERE key IN (SELECT key FROM replies WHERE at_us < ? ORDER BY at_us LIMIT ?);
