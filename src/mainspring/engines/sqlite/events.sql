-- The numbers of deleted events are not given again: readers go on behind them.
-- part: last
max(coalesce((SELECT max(number) FROM events), 0), (SELECT max(swept, given) FROM event_ends))
;

-- name: leave_out_number
UPDATE event_ends SET given = {last} + 1;

-- name: next_event
SELECT {last} + 1, CAST(unixepoch('subsec') * 1000000 AS INTEGER);

-- name: append_numbered_events
INSERT INTO events (number, at_us, namespace, type, function, subject, job, fields) VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: log_ends
SELECT {last}, swept, changes FROM event_ends;

-- name: swept_until
SELECT max(number) FROM (SELECT number, at_us FROM events ORDER BY number LIMIT $3) WHERE at_us < $1 OR number <= {last} - $2;
