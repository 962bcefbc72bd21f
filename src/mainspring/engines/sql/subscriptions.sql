-- name: subscriptions
SELECT id, number, version, failures, definition FROM subscriptions ORDER BY id;

-- name: save_subscriptions
INSERT INTO subscriptions (id, number, version, failures, definition) {rows(text, bigint, bigint, bigint, bytea)}
ON CONFLICT (id) DO UPDATE SET number = excluded.number, version = excluded.version, failures = excluded.failures,
    definition = excluded.definition;

-- name: remove_subscription
DELETE FROM subscriptions WHERE id = $1;

-- name: remove_deliveries
DELETE FROM deliveries WHERE subscription = $1;

-- name: add_deliveries
INSERT INTO deliveries (subscription, subject, number, job, depth, payload) {rows(text, bigint, bigint, bigint, bigint, bytea)}
ON CONFLICT DO NOTHING;

-- name: become_job
UPDATE deliveries SET job = $4, payload = $5 WHERE subscription = $1 AND subject = $2 AND number = $3;

-- name: deliveries_with_jobs
SELECT subscription, subject, number, payload, depth, job FROM deliveries WHERE job > 0 AND job > $1 ORDER BY job LIMIT $2;
