-- name: functions_named
SELECT id, namespace, name FROM functions
JOIN unnest($1::text[], $2::bytea[]) AS asked (namespace, name) USING (namespace, name);

-- name: functions_numbered
SELECT id, namespace, name FROM functions WHERE id = ANY ($1::int[]);

-- Sorted by the caller: two groups that name the same functions take turns instead of waiting for each other.
-- name: functions_new
INSERT INTO functions (namespace, name)
SELECT namespace, name FROM unnest($1::text[], $2::bytea[]) AS asked (namespace, name)
ON CONFLICT (namespace, name) DO NOTHING
RETURNING id, namespace, name;

-- name: nodes_of
SELECT term, node FROM terms WHERE term = ANY ($1::bigint[]);
