-- name: leased
SELECT id FROM jobs WHERE id {among($1)} AND term = $2 AND state IN ({leased}, {running});

-- name: delete_instance
DELETE FROM instances WHERE resource = $1 AND name = $2;

-- name: open_among
SELECT id FROM runs WHERE id {among($1)} AND status = 0;
