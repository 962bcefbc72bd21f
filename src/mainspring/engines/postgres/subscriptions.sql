-- name: lock_subscriptions
SELECT id, number, version, failures, definition FROM subscriptions WHERE id {among($1, text)} ORDER BY id FOR UPDATE;

-- Each of these looks into the index once for each row: the table may be long, and a planner would read all of it.
-- name: end_deliveries
DELETE FROM deliveries AS d USING unnest($1::text[], $2::bigint[], $3::bigint[]) AS s (subscription, subject, number)
WHERE d.subscription = ANY (ARRAY[s.subscription]) AND d.subject = ANY (ARRAY[s.subject]) AND d.number = ANY (ARRAY[s.number])
RETURNING d.subscription, d.subject, d.number;

-- name: next_deliveries
SELECT first.* FROM unnest($1::text[], $2::bigint[]) AS s (subscription, subject) CROSS JOIN LATERAL (
    SELECT d.subscription, d.subject, d.number, d.payload, d.depth, d.job FROM deliveries AS d
    WHERE d.subscription = s.subscription AND d.subject = s.subject ORDER BY d.number LIMIT 1
) AS first;

-- name: under_way
SELECT first.* FROM unnest($1::text[], $2::bigint[]) AS s (subscription, subject) CROSS JOIN LATERAL (
    SELECT d.subscription, d.subject FROM deliveries AS d
    WHERE d.subscription = s.subscription AND d.subject = s.subject LIMIT 1
) AS first;
