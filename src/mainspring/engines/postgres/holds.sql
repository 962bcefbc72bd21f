-- A job that nobody holds has no term. The state would lead to the index of held jobs.
-- name: leased
SELECT id FROM jobs WHERE id {among($1)} AND term = $2 AND term <> 0;

-- name: lock_resources
SELECT FROM resource_locks WHERE number = ANY (ARRAY(
    SELECT (hashtextextended(name, 0) & 63)::int FROM unnest($1::text[]) AS name)) ORDER BY number FOR UPDATE;

-- name: delete_hold
DELETE FROM holds USING ({rows(text, text, smallint, bigint, bigint)}) AS s (resource, item, kind, holder, term)
WHERE holds.resource = s.resource AND holds.item = s.item AND holds.kind = s.kind AND holds.holder = s.holder
    AND holds.term = s.term;

-- name: delete_request
DELETE FROM requests USING ({rows(text, smallint, bigint, bigint)}) AS s (resource, kind, holder, term)
WHERE requests.resource = s.resource AND requests.kind = s.kind AND requests.holder = s.holder AND requests.term = s.term;
