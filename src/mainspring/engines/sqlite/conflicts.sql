-- name: ripe_successors
SELECT job, predecessor, due_us, stops FROM successors AS s
WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE id = s.predecessor AND state < {succeeded})
    OR NOT EXISTS (SELECT 1 FROM jobs WHERE id = s.job AND state < {succeeded})
LIMIT $1;

-- name: release_successor
UPDATE OR IGNORE jobs SET uniq = $2, due_us = $3 WHERE id = $1 AND state = {scheduled} RETURNING id;
