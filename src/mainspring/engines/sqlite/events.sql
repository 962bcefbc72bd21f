-- name: append_events
INSERT INTO events (at_us, namespace, type, function, subject, job, fields)
VALUES (CAST(unixepoch('subsec') * 1000000 AS INTEGER), $1, $2, $3, $4, $5, $6);

-- Both ends are the last rows of indexes.
-- name: swept_until
SELECT max(number) FROM (
    SELECT number FROM events
    WHERE at_us < $1 OR number <= (SELECT max(number) FROM events) - $2
    ORDER BY number LIMIT $3);

-- name: log_ends
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0), swept, asked FROM event_ends;
