-- name: leased
SELECT id FROM jobs WHERE id {among($1)} AND term = $2 AND state IN ({leased}, {running});
