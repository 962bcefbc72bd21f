-- name: leased
SELECT id FROM jobs WHERE id {among($1)} AND term = $2 AND state IN ({leased}, {running});

-- name: delete_hold
DELETE FROM holds WHERE resource = $1 AND item = $2 AND kind = $3 AND holder = $4 AND term = $5;

-- name: delete_request
DELETE FROM requests WHERE resource = $1 AND kind = $2 AND holder = $3 AND term = $4;
