-- name: lock_subscriptions
SELECT id, number, version, failures, definition FROM subscriptions WHERE id {among($1, text)} ORDER BY id;

-- name: end_deliveries
DELETE FROM deliveries WHERE subscription = $1 AND subject = $2 AND number = $3 RETURNING subscription, subject, number;

-- name: next_deliveries
SELECT subscription, subject, number, payload, depth, job FROM deliveries
WHERE subscription = $1 AND subject = $2 ORDER BY number LIMIT 1;

-- name: under_way
SELECT subscription, subject FROM deliveries WHERE subscription = $1 AND subject = $2 LIMIT 1;
