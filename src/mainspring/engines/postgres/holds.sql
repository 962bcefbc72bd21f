-- A job that nobody holds has no term. The state would lead to the index of held jobs.
-- name: leased
SELECT id FROM jobs WHERE id {among($1)} AND term = $2 AND term <> 0;

-- name: open_among
SELECT id FROM runs_open WHERE id {among($1)} AND status = 0;

-- name: lock_resources
SELECT FROM resource_locks WHERE number = ANY (ARRAY(
    SELECT (hashtextextended(name, 0) & 63)::int FROM unnest($1::text[]) AS name)) ORDER BY number FOR UPDATE;

-- name: delete_instance
DELETE FROM instances USING ({rows(text, text)}) AS s (resource, name)
WHERE instances.resource = s.resource AND instances.name = s.name;

-- name: store_us
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
