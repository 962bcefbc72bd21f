-- Published values (mainspring.values).

-- name: held_under
SELECT id FROM jobs WHERE id {among($1)} AND term = $2 AND state >= {leased};

-- name: stored_jobs
SELECT id FROM jobs WHERE id {among($1)}
UNION ALL SELECT id FROM ended WHERE id {among($1)}
UNION ALL SELECT id FROM dead WHERE id {among($1)};

-- name: live_jobs
SELECT id FROM jobs WHERE id {among($1)};
