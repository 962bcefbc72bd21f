-- name: count_interest_changes
UPDATE event_ends SET changes = changes + 1;

-- name: interests
SELECT id, until_us, interest, since, place FROM interests ORDER BY id;

-- name: remove_ended_interests
DELETE FROM interests WHERE until_us > 0 AND until_us <= $1;

-- name: remove_interests
DELETE FROM interests WHERE id {among($1, text)};

-- name: save_interests
INSERT INTO interests (id, until_us, interest, since, place) {rows(text, bigint, bytea, bigint, bigint)}
ON CONFLICT (id) DO UPDATE SET until_us = excluded.until_us, interest = excluded.interest, since = excluded.since;

-- name: move_cursor
UPDATE interests SET place = $2 WHERE id = $1 AND place < $2;

-- name: cursor_place
SELECT place FROM interests WHERE id = $1;

-- name: events
SELECT number, at_us, namespace, type, function, subject, job, fields FROM events WHERE number > $1 ORDER BY number LIMIT $2;

-- name: events_backward
SELECT number, at_us, namespace, type, function, subject, job, fields FROM events WHERE number < $1 ORDER BY number DESC LIMIT $2;

-- name: events_of_job
SELECT number, at_us, namespace, type, function, subject, job, fields FROM events
WHERE job = $3 AND job > 0 AND number > $1 ORDER BY job, number LIMIT $2;

-- name: events_of_job_backward
SELECT number, at_us, namespace, type, function, subject, job, fields FROM events
WHERE job = $3 AND job > 0 AND number < $1 ORDER BY job DESC, number DESC LIMIT $2;

-- name: note_swept
UPDATE event_ends SET swept = $1 WHERE swept < $1;

-- name: sweep_events
DELETE FROM events WHERE number <= $1;

-- The row stays locked, so that no other transaction counts the same number.
-- name: count_series
INSERT INTO event_series AS s (key, number, last_us, before_us) VALUES ($1, $2, $3, 0)
ON CONFLICT (key) DO UPDATE SET
    number = CASE WHEN s.last_us < $4 THEN 0 ELSE s.number END + excluded.number,
    before_us = CASE WHEN s.last_us < $4 THEN 0 ELSE s.last_us END,
    last_us = CASE WHEN s.last_us > excluded.last_us THEN s.last_us ELSE excluded.last_us END
RETURNING number, before_us;

-- name: begin_series
UPDATE event_series SET number = $2 WHERE key = $1;

-- name: end_series
DELETE FROM event_series WHERE key = $1;
