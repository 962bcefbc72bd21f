-- A job that nobody holds has no term. The state would lead to the index of held jobs.
-- name: leased
SELECT id, term = $2 AND term <> 0 FROM jobs WHERE id {among($1)};

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

-- Most new holds have the same values but for those in arrays, each of whose values takes the driver some time.
-- name: add_holds
INSERT INTO holds (resource, kind, term, since_us, until_us, item, holder, turn, units, number)
SELECT $1, $2, $3, $4, $5, *
FROM unnest($6::text[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[]);
