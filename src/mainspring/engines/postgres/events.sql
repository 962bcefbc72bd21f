-- name: log_ends
SELECT last, swept, changes FROM event_ends;

-- name: leave_out_number
UPDATE event_ends SET last = last + 1;

-- name: append_events
INSERT INTO new_events (namespace, type, function, subject, job, fields) {rows(text, text, text, text, bigint, bytea)};

-- The next number, with the lock on it until the transaction ends. No row while another transaction has the lock, or earlier events
-- have no numbers: all earlier events of the jobs of this transaction are seen here, because it has waited for the rows of the jobs.
-- name: next_event
SELECT last + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM event_ends
WHERE NOT EXISTS (SELECT FROM new_events) FOR UPDATE SKIP LOCKED;

-- name: append_numbered_events
WITH added AS (
    INSERT INTO events (number, at_us, namespace, type, function, subject, job, fields)
    {rows(bigint, bigint, text, text, text, text, bigint, bytea)}
    RETURNING number
)
UPDATE event_ends SET last = (SELECT max(number) FROM added);

-- A statement of its own: only later ones see the numbers of the transaction that had the lock before. Without the lock, the primary
-- key would refuse numbers that two transactions give, and the group would run again.
-- name: lock_event_ends
SELECT last FROM event_ends FOR UPDATE;

-- name: number_events
WITH taken AS (
    DELETE FROM new_events WHERE place = ANY (ARRAY(SELECT place FROM new_events ORDER BY place LIMIT $1))
    RETURNING place, at_us, namespace, type, function, subject, job, fields
), numbered AS (
    INSERT INTO events (number, at_us, namespace, type, function, subject, job, fields)
    SELECT (SELECT last FROM event_ends) + row_number() OVER (ORDER BY place), at_us, namespace, type, function, subject, job, fields
    FROM taken
    RETURNING number
), total AS (SELECT count(*) AS number FROM numbered)
UPDATE event_ends SET last = last + total.number FROM total WHERE total.number > 0
RETURNING total.number;

-- name: swept_until
SELECT max(number) FROM (SELECT number, at_us FROM events ORDER BY number LIMIT $3) AS oldest
WHERE at_us < $1 OR number <= (SELECT last FROM event_ends) - $2;
