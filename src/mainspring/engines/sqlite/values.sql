-- Published values (mainspring.values).

-- name: held_under
SELECT id FROM jobs WHERE id {among($1)} AND term = $2 AND state BETWEEN {leased} AND {running};

-- name: stored_jobs
SELECT id FROM jobs WHERE id {among($1)};

-- name: live_jobs
SELECT id FROM jobs WHERE id {among($1)} AND state < {succeeded};
