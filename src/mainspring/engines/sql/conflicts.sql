-- Submits by a rule, and successors (mainspring.conflicts.store).

-- name: replace_input
UPDATE jobs SET payload = $2, input_size = $3 WHERE id = $1 AND state < {leased};

-- name: put_successor
INSERT INTO successors (job, predecessor, due_us, stops) VALUES ($1, $2, $3, $4)
ON CONFLICT (job) DO UPDATE SET predecessor = excluded.predecessor, due_us = excluded.due_us, stops = excluded.stops;

-- name: successor
SELECT job, predecessor, due_us, stops FROM successors WHERE job = $1;

-- name: delete_successor
DELETE FROM successors WHERE job = $1;

-- name: any_successor
SELECT 1 FROM successors LIMIT 1;

-- name: stopping_predecessors
SELECT predecessor FROM successors WHERE stops = 1 LIMIT $1;
