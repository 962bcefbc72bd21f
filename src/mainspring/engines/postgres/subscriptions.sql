-- name: lock_subscriptions
SELECT id, number, version, failures, definition FROM subscriptions WHERE id {among($1, text)} ORDER BY id FOR UPDATE;
