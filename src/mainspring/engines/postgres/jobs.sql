-- The statements of the job operations. Each takes many rows at once: parallel arrays, an empty one if all its values would be
-- NULL. The caller sorts rows that are locked, so that two nodes' groups do not deadlock.
-- Jobs are read in one order of columns, that of mainspring.engines.postgres.transaction.
--
-- Rows are looked up by `id = ANY (ARRAY[s.id])`, which means `id = s.id`, and which only an index can answer. With the plain
-- equality, a plan made while the table was empty, or full of dead tuples, would scan the whole table and look each row up in
-- the arrays.

-- ---- submissions ----

-- part: new
id, place, created_us, due_us, expires_us, term, function, input_size, state, priority, slot, foreground, waited,
    options, payload, key;

-- name: submit
INSERT INTO jobs ({new})
SELECT {s.new | place: base + s.rank | term: coalesce(s.term, 0)}
FROM (SELECT CASE WHEN $17 THEN nextval('places') ELSE currval('places') END << 20 AS base) AS places, unnest(
    $1::bigint[], $2::int[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::int[], $8::int[], $9::smallint[],
    $10::smallint[], $11::smallint[], $12::boolean[], $13::boolean[], $14::bytea[], $15::bytea[], $16::bytea[])
AS s ({new | place: rank});

-- This waits for groups of other nodes that take or free the same uniques now. If such a group waits for this one too, the first
-- to time out is run again: sooner than after the second until PostgreSQL checks for deadlocks.
-- name: submit_unique
INSERT INTO jobs ({new}, uniq, keep)
SELECT {s.new | place: base + s.rank | term: coalesce(s.term, 0)}, s.uniq, s.keep
FROM (
    SELECT CASE WHEN $19 THEN nextval('places') ELSE currval('places') END << 20 AS base, set_config('lock_timeout', '100ms', true)
) AS places, unnest(
    $1::bigint[], $2::int[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::int[], $8::int[], $9::smallint[],
    $10::smallint[], $11::smallint[], $12::boolean[], $13::boolean[], $14::bytea[], $15::bytea[], $16::bytea[], $17::bytea[],
    $18::boolean[])
AS s ({new | place: rank}, uniq, keep)
ON CONFLICT (function, uniq) WHERE uniq IS NOT NULL DO NOTHING
RETURNING id;

-- name: live
SELECT s.function, s.uniq, j.id, j.state, j.attempt, j.foreground
FROM unnest($1::int[], $2::bytea[]) AS s (function, uniq)
CROSS JOIN LATERAL (
    SELECT * FROM jobs WHERE function = s.function AND uniq = s.uniq AND uniq IS NOT NULL OFFSET 0) AS j;

-- The last success of each key.
-- name: kept
SELECT s.function, s.uniq, e.id, e.attempt, e.ended_us
FROM unnest($1::int[], $2::bytea[], $3::bigint[]) AS s (function, uniq, since_us)
CROSS JOIN LATERAL (
    SELECT id, attempt, ended_us FROM ended
    WHERE keep AND function = s.function AND uniq = s.uniq AND ended_us > s.since_us
    ORDER BY ended_us DESC, id DESC LIMIT 1) AS e;

-- The row is locked, so that a concurrent end of the job sees the change, or is seen.
-- name: join
UPDATE jobs SET foreground = CASE WHEN s.background THEN NULL ELSE jobs.foreground END, waited = s.waited OR jobs.waited
FROM unnest($1::bigint[], $2::boolean[], $3::boolean[]) AS s (id, background, waited)
WHERE jobs.id = ANY (ARRAY[s.id])
RETURNING jobs.id;

-- name: note_waiting
INSERT INTO waits (job_id, term) SELECT job_id, term FROM unnest($1::bigint[], $2::bigint[]) AS s (job_id, term)
ON CONFLICT DO NOTHING;

-- name: tag
INSERT INTO tags (namespace, tag, job, created_us)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]);

-- ---- the ends of leases ----

-- part: dead
id, place, ended_us, created_us, term, due_us, expires_us, started_us, function, attempt, suspects,
    input_size, state, priority, slot, keep, foreground, uniq, options, error, payload, attempts;

-- part: ended
{dead | without place, slot | state: output_size | error: error, result};

-- A job that no node holds has the term 0, and no settlement names it: `term` alone is the guard.
-- name: succeed
WITH gone AS (
    DELETE FROM jobs USING unnest(
        $1::bigint[], $2::bigint[], $3::int[], $4::int[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bytea[], $9::bytea[],
        $10::bytea[], $11::bytea[])
    AS s (id, term, attempt, suspects, started_us, ended_us, due_us, result, error, payload, record)
    WHERE jobs.id = ANY (ARRAY[s.id]) AND jobs.term = s.term
    RETURNING {jobs.ended | without output_size | ended_us: s.ended_us | due_us: s.due_us | started_us: s.started_us
        | attempt: s.attempt | suspects: s.suspects | error: s.error | result: s.result, jobs.waited
        | payload: kept_payload(jobs.payload, s.payload) AS payload
        | attempts: appended_record(jobs.attempts, s.record) AS attempts}
), stored AS (
    INSERT INTO ended ({ended})
    SELECT {ended | ended_us: coalesce(ended_us, 0) | output_size: coalesce(length(result), 0)}
    FROM gone
)
SELECT count(*), array_agg(id) FILTER (WHERE waited),
    CASE WHEN count(*) < cardinality($1::bigint[]) THEN array_agg(id) END,
    CASE WHEN count(*) < cardinality($1::bigint[]) THEN array_agg(term) END
FROM gone;

-- Both in one, with the fence and the journal: the function `usual_2` of the schema.
-- name: fast_path
SELECT usual_2($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26,
    $27, $28, $29, $30, $31, $32, $33, $34, $35);

-- name: end_unsuccessful
WITH gone AS (
    DELETE FROM jobs USING unnest(
        $1::bigint[], $2::bigint[], $3::int[], $4::int[], $5::bigint[], $6::bigint[], $7::bigint[], $8::smallint[], $9::bytea[],
        $10::bytea[])
    AS s (id, term, attempt, suspects, started_us, ended_us, due_us, state, error, record)
    WHERE jobs.id = ANY (ARRAY[s.id]) AND jobs.term = s.term
    RETURNING {jobs.dead | ended_us: s.ended_us | due_us: s.due_us | started_us: s.started_us | attempt: s.attempt
        | suspects: s.suspects | state: s.state | error: coalesce(s.error, jobs.error) AS error | payload: jobs.payload, jobs.waited
        | attempts: appended_record(jobs.attempts, s.record) AS attempts}
), stored AS (
    INSERT INTO dead ({dead})
    SELECT {dead | ended_us: coalesce(ended_us, 0)}
    FROM gone
)
SELECT id, term, waited FROM gone;

-- name: give_back
UPDATE jobs
SET state = s.state, term = 0, attempt = s.attempt, suspects = s.suspects, started_us = s.started_us, ended_us = s.ended_us,
    due_us = s.due_us, error = coalesce(s.error, jobs.error),
    attempts = appended_record(jobs.attempts, s.record)
FROM unnest(
    $1::bigint[], $2::bigint[], $3::int[], $4::int[], $5::bigint[], $6::bigint[], $7::bigint[], $8::smallint[], $9::bytea[],
    $10::bytea[])
AS s (id, term, attempt, suspects, started_us, ended_us, due_us, state, error, record)
WHERE jobs.id = ANY (ARRAY[s.id]) AND jobs.term = s.term AND jobs.stopping IS NULL
RETURNING jobs.id, s.term, jobs.place;

-- Jobs that end with nothing left of them: their owner keeps the outcome.
-- name: forget
DELETE FROM jobs USING unnest($1::bigint[], $2::bigint[]) AS s (id, term)
WHERE jobs.id = ANY (ARRAY[s.id]) AND jobs.term = s.term
RETURNING jobs.id, s.term, waited;

-- A held job has a term of its own; root jobs have -1.
-- name: request_stop
UPDATE jobs SET stopping = $3
FROM unnest($1::bigint[], $2::bigint[]) AS s (id, term)
WHERE jobs.id = ANY (ARRAY[s.id]) AND jobs.term > 0 AND (s.term IS NULL OR jobs.term = s.term)
RETURNING jobs.id;

-- name: stopping
SELECT s.id, s.term, jobs.stopping
FROM unnest($1::bigint[], $2::bigint[]) AS s (id, term)
JOIN jobs ON jobs.id = ANY (ARRAY[s.id]) AND jobs.term = s.term
WHERE jobs.stopping IS NOT NULL;

-- After the rows of the jobs were locked, and in a new snapshot: it sees clients that began to wait in between. Submissions of
-- the inbox that have joined a job are reported by their own ids too: clients may wait for those.
-- name: end_waiting
WITH gone AS (DELETE FROM waits WHERE job_id = ANY ($1::bigint[]) RETURNING job_id, term)
SELECT job_id, term FROM gone
UNION ALL
SELECT aliases.id, gone.term FROM gone JOIN aliases ON aliases.job_id = ANY (ARRAY[gone.job_id]);

-- ---- claims and recovery ----

-- One row per request, with the start place for each of the three priorities. Rows are locked as they are read, and no others:
-- the outer limit ends the scans.
-- name: claim
WITH picked AS MATERIALIZED (
    SELECT w.want, p.id
    FROM unnest($2::int[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[], $8::bigint[])
        WITH ORDINALITY AS w (function, number, high, normal, low, slots, overdue_us, want)
    CROSS JOIN LATERAL (
        SELECT q.id
        FROM (VALUES (0::smallint, w.high), (1::smallint, w.normal), (2::smallint, w.low)) AS level (priority, place)
        CROSS JOIN LATERAL (
            SELECT id FROM jobs
            WHERE state = {pending} AND function = w.function AND priority = level.priority AND place >= level.place
                AND (w.slots IS NULL OR get_bit(w.slots, slot) = 1 OR greatest(created_us, due_us) < w.overdue_us)
            ORDER BY place LIMIT w.number FOR UPDATE SKIP LOCKED) AS q
        LIMIT w.number) AS p
)
UPDATE jobs SET state = {leased}, term = $1
FROM picked WHERE jobs.id = ANY (ARRAY[picked.id])
RETURNING {job | id: jobs.id | output_size: 0 | result: NULL::bytea}, place, want;

-- From now on scans may skip everything below the first pending place.
-- name: lowest
SELECT level.priority, q.place
FROM unnest($2::smallint[], $3::bigint[]) AS level (priority, place)
CROSS JOIN LATERAL (
    SELECT place FROM jobs
    WHERE state = {pending} AND function = $1 AND priority = level.priority AND place >= level.place ORDER BY place LIMIT 1) AS q;

-- name: first_in_line
SELECT f.function, min(greatest(q.created_us, q.due_us))
FROM unnest($1::int[], $2::bigint[], $3::bigint[], $4::bigint[]) AS f (function, high, normal, low)
CROSS JOIN LATERAL (VALUES (0::smallint, f.high), (1::smallint, f.normal), (2::smallint, f.low)) AS level (priority, place)
CROSS JOIN LATERAL (
    SELECT created_us, due_us FROM jobs
    WHERE state = {pending} AND function = f.function AND priority = level.priority AND place >= level.place
    ORDER BY place LIMIT 1) AS q
GROUP BY f.function;

-- name: top
SELECT last_value << 20 FROM places;

-- part: held
id, state, function, priority, attempt, suspects, term, foreground, options;

-- name: held_elsewhere
WITH held AS MATERIALIZED (
    SELECT {held}
    FROM jobs WHERE state IN ({leased}, {running}) AND term > 0 AND term <> $1 LIMIT $2 FOR UPDATE
)
SELECT * FROM held ORDER BY id;

-- name: held_by
WITH held AS MATERIALIZED (
    SELECT {held}
    FROM jobs WHERE state IN ({leased}, {running}) AND term > 0 AND term = ANY ($1::bigint[]) LIMIT $2 FOR UPDATE
)
SELECT * FROM held ORDER BY id;

-- name: waited_by
WITH found AS MATERIALIZED (SELECT job_id FROM waits WHERE term = ANY ($1::bigint[]) LIMIT $2)
SELECT DISTINCT job_id FROM found;

-- name: assign
UPDATE jobs SET state = {running}, attempt = s.attempt
FROM unnest($1::bigint[], $2::bigint[], $3::int[]) AS s (id, term, attempt)
WHERE jobs.id = ANY (ARRAY[s.id]) AND jobs.term = s.term
RETURNING jobs.id, jobs.term;

-- ---- clients that wait ----

-- name: wait
WITH found AS (
    UPDATE jobs SET waited = true
    WHERE id = ANY ($1::bigint[])
        AND ($3::text = '' OR EXISTS (SELECT FROM functions AS f WHERE f.id = jobs.function AND f.namespace = $3))
    RETURNING id)
INSERT INTO waits (job_id, term)
SELECT s.job_id, s.term FROM unnest($1::bigint[], $2::bigint[]) AS s (job_id, term) WHERE (s.job_id IN (SELECT id FROM found)) IS TRUE
ON CONFLICT DO NOTHING;

-- Not by the index of terms (hence `+ 0`): a node may wait for many jobs.
-- name: leave
DELETE FROM waits USING unnest($1::bigint[], $2::bigint[]) AS s (job_id, term)
WHERE waits.job_id = ANY (ARRAY[s.job_id]) AND waits.term + 0 = s.term;

-- name: lock_foreground
SELECT id FROM jobs WHERE id = ANY ($1::bigint[]) AND foreground ORDER BY id FOR UPDATE;

-- In a new snapshot, once the rows are locked: it sees all waiting clients, and no other can begin to wait.
-- name: drop_foreground
DELETE FROM jobs USING unnest($1::bigint[], $2::bigint[]) AS s (id, term)
WHERE jobs.id = ANY (ARRAY[s.id]) AND foreground AND (state < {leased} OR state = {leased} AND jobs.term = s.term)
    AND NOT EXISTS (SELECT FROM waits WHERE job_id = ANY (ARRAY[s.id]))
RETURNING jobs.id, function, state, priority;

-- name: subscribers
SELECT job_id, term FROM waits WHERE job_id = ANY ($1::bigint[]) ORDER BY job_id, term;

-- ---- jobs that no node holds ----

-- name: cancel
WITH gone AS (
    DELETE FROM jobs USING unnest($1::bigint[], $2::bigint[], $3::bytea[]) AS s (id, ended_us, error)
    WHERE jobs.id = ANY (ARRAY[s.id]) AND jobs.state < {leased}
        AND ($4::text = '' OR EXISTS (SELECT FROM functions AS f WHERE f.id = jobs.function AND f.namespace = $4))
    RETURNING {jobs.dead | without term | ended_us: s.ended_us | error: s.error | payload: jobs.payload, jobs.waited}
), stored AS (
    INSERT INTO dead ({dead})
    SELECT {dead | term: 0 | state: {cancelled}}
    FROM gone
)
SELECT {columns | state: {cancelled} | term: 0}, state, waited
FROM gone;

-- name: reschedule
WITH waiting AS MATERIALIZED (
    SELECT id, state, priority, due_us FROM jobs WHERE id = ANY ($1::bigint[]) AND state < {leased} ORDER BY id FOR UPDATE
)
UPDATE jobs
SET state = s.state, due_us = coalesce(s.due_us, jobs.due_us), priority = coalesce(s.priority, jobs.priority),
    expires_us = coalesce(s.expires_us, jobs.expires_us)
FROM waiting, unnest($1::bigint[], $2::smallint[], $3::bigint[], $4::smallint[], $5::bigint[])
AS s (id, state, due_us, priority, expires_us)
WHERE jobs.id = ANY (ARRAY[s.id]) AND waiting.id = s.id
RETURNING {columns | id: jobs.id | state: jobs.state | priority: jobs.priority | due_us: jobs.due_us | expires_us: jobs.expires_us},
    waiting.state, waiting.priority, place, waiting.due_us;

-- name: delete_ended
WITH succeeded AS (
    DELETE FROM ended WHERE id = ANY ($1::bigint[]) AND term >= 0 RETURNING id, function, {succeeded}::smallint AS state, priority
), others AS (
    DELETE FROM dead WHERE id = ANY ($1::bigint[]) AND term >= 0 RETURNING id, function, state, priority
)
SELECT * FROM succeeded UNION ALL SELECT * FROM others;

-- name: lock_dead
SELECT id, function, state, priority, place, uniq FROM dead
WHERE id = ANY ($1::bigint[]) AND term >= 0
    AND ($2::text = '' OR EXISTS (SELECT FROM functions AS f WHERE f.id = dead.function AND f.namespace = $2))
ORDER BY id FOR UPDATE;

-- part: again
{dead | without ended_us, term, expires_us, started_us, attempt, suspects, foreground};

-- name: redrive
INSERT INTO jobs ({again})
SELECT {again | id: d.id | due_us: coalesce(s.due_us, d.due_us) | input_size: coalesce(length(s.payload), input_size)
    | state: s.state | payload: coalesce(s.payload, d.payload)}
FROM unnest($1::bigint[], $2::smallint[], $3::bigint[], $4::bytea[]) WITH ORDINALITY AS s (id, state, due_us, payload, rank)
JOIN dead AS d ON d.id = ANY (ARRAY[s.id])
ORDER BY function, uniq, rank
ON CONFLICT DO NOTHING
RETURNING id;

-- name: delete_dead
DELETE FROM dead WHERE id = ANY ($1::bigint[]);

-- name: arguments
SELECT payload FROM jobs WHERE id = ANY ($1::bigint[])
UNION ALL SELECT payload FROM ended WHERE id = ANY ($1::bigint[])
UNION ALL SELECT payload FROM dead WHERE id = ANY ($1::bigint[])
UNION ALL SELECT payload FROM inbox WHERE id = ANY ($1::bigint[]);

-- The arguments and the attempts of a job.
-- name: recall
SELECT CASE WHEN length(payload) <= $2 THEN payload END, payload IS NOT NULL, attempts FROM jobs WHERE id = $1
UNION ALL
SELECT CASE WHEN length(payload) <= $2 THEN payload END, payload IS NOT NULL, attempts FROM ended WHERE id = $1
UNION ALL
SELECT CASE WHEN length(payload) <= $2 THEN payload END, payload IS NOT NULL, attempts FROM dead WHERE id = $1
UNION ALL
SELECT CASE WHEN length(payload) <= $2 THEN payload END, true, NULL FROM inbox WHERE id = $1;

-- name: results
SELECT id, result FROM ended WHERE id = ANY ($1::bigint[]);

-- `now` is the earlier of the node's clock and the database's: a node whose clock is ahead fires nothing early.
-- name: now
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- name: expire
WITH late AS MATERIALIZED (
    SELECT id FROM jobs
    WHERE expires_us > 0 AND state < {leased} AND attempt = 0 AND suspects < 65536 AND expires_us >= $2 AND expires_us <= $1
    ORDER BY expires_us, id LIMIT $3 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM jobs USING late WHERE jobs.id = ANY (ARRAY[late.id])
    RETURNING {jobs.dead | without ended_us, term | payload: jobs.payload, jobs.waited}
), stored AS (
    INSERT INTO dead ({dead})
    SELECT {dead | ended_us: $1 | term: 0 | state: {expired}}
    FROM gone
)
SELECT {columns | state: {expired} | ended_us: $1::bigint | term: 0}, state, waited
FROM gone ORDER BY expires_us, id;

-- name: due
WITH ready AS MATERIALIZED (
    SELECT id, due_us FROM jobs
    WHERE state = {scheduled} AND due_us >= $2 AND due_us <= $1
    ORDER BY due_us, id LIMIT $3 FOR UPDATE SKIP LOCKED
)
UPDATE jobs SET state = {pending} FROM ready WHERE jobs.id = ANY (ARRAY[ready.id])
RETURNING jobs.function, jobs.priority, jobs.place, ready.due_us;

-- name: next
SELECT
    (SELECT due_us FROM jobs WHERE state = {scheduled} AND due_us >= $1 ORDER BY due_us LIMIT 1),
    (SELECT expires_us FROM jobs
        WHERE expires_us > 0 AND state < {leased} AND attempt = 0 AND suspects < 65536 AND expires_us >= $2 ORDER BY expires_us LIMIT 1);

-- ---- root jobs and jobs of runs ----

-- Root jobs: running under the term -1 from their beginning to their end, and under it for ever.
-- name: begun
UPDATE jobs SET started_us = s.started_us
FROM unnest($1::bigint[], $2::bigint[]) AS s (id, started_us)
WHERE jobs.id = ANY (ARRAY[s.id]);

-- The statement `claim` for one function, without its changes.
-- name: pending
SELECT {q.job | output_size: 0 | result: NULL::bytea}, q.place
FROM (VALUES (0::smallint, $3::bigint), (1::smallint, $4::bigint), (2::smallint, $5::bigint)) AS level (priority, place)
CROSS JOIN LATERAL (
    SELECT * FROM jobs
    WHERE state = {pending} AND function = $1 AND priority = level.priority AND place >= level.place
    ORDER BY place LIMIT $2 FOR UPDATE SKIP LOCKED) AS q
LIMIT $2;

-- name: waiting
SELECT {job | output_size: 0 | result: NULL::bytea}
FROM jobs WHERE id = ANY ($1::bigint[]) AND state < {leased} ORDER BY id FOR UPDATE;

-- name: take
UPDATE jobs
SET state = {running}, term = -1, attempt = 0, started_us = $2, payload = '', error = NULL, foreground = NULL, stopping = NULL
FROM unnest($1::bigint[]) AS s (id)
WHERE jobs.id = ANY (ARRAY[s.id]);

-- name: end_roots
WITH gone AS (
    DELETE FROM jobs USING unnest($1::bigint[], $2::smallint[], $3::bigint[], $4::bytea[], $5::bytea[])
    AS s (id, state, ended_us, error, result)
    WHERE jobs.id = ANY (ARRAY[s.id]) AND jobs.term = -1
    RETURNING {jobs.dead | ended_us: s.ended_us | attempt: 1 AS attempt | state: s.state | error: s.error, s.result
        | payload: jobs.payload, jobs.waited}
), succeeded AS (
    INSERT INTO ended ({ended})
    SELECT {ended | output_size: coalesce(length(result), 0) | payload: NULL}
    FROM gone WHERE state = {succeeded}
), others AS (
    INSERT INTO dead ({dead})
    SELECT {dead}
    FROM gone WHERE state > {succeeded}
)
SELECT {job | output_size: coalesce(length(result), 0) | result: NULL::bytea | payload: NULL::bytea}, waited
FROM gone;

-- They are ordinary jobs afterwards.
-- name: reject_roots
WITH gone AS (
    DELETE FROM jobs USING unnest($1::bigint[], $2::smallint[], $3::bigint[], $4::bytea[], $5::bytea[])
    AS s (id, state, ended_us, error, payload)
    WHERE jobs.id = ANY (ARRAY[s.id]) AND jobs.term = -1
    RETURNING {jobs.dead | term: 0::bigint AS term | ended_us: s.ended_us | started_us: NULL::bigint AS started_us
        | attempt: 0 AS attempt | state: s.state | error: s.error | payload: s.payload, jobs.waited}
), stored AS (
    INSERT INTO dead ({dead})
    SELECT {dead}
    FROM gone
)
SELECT {columns}, waited
FROM gone;

-- name: forget_roots
WITH succeeded AS (
    DELETE FROM ended WHERE id = ANY ($1::bigint[]) AND term = -1 RETURNING function, {succeeded}::smallint AS state, priority
), others AS (
    DELETE FROM dead WHERE id = ANY ($1::bigint[]) AND term = -1 RETURNING function, state, priority
)
SELECT * FROM succeeded UNION ALL SELECT * FROM others;

-- name: withdraw
DELETE FROM jobs USING unnest($1::bigint[]) AS s (id)
WHERE jobs.id = ANY (ARRAY[s.id])
RETURNING jobs.id, term, state, function, priority, waited;

-- Nothing takes the lease away before the transaction ends.
-- name: is_held
SELECT FROM jobs WHERE id = $1 AND term = $2 AND state >= {leased} FOR UPDATE;

-- ---- reading ----

-- The columns of a job as `rows.stored` reads them.
-- part: job
id, function, state, priority, uniq, created_us, due_us, expires_us, started_us, ended_us, term, attempt, suspects,
    input_size, output_size, options, error, result, payload, foreground;

-- part: columns
{job | output_size: 0 | result: NULL::bytea | payload: NULL::bytea};

-- part: columns_of_ended
{job | state: {succeeded} AS state | result: NULL::bytea | payload: NULL::bytea};

-- The same for lists, with the first bytes of the error: those of many rows must not fill the memory (`sizes.STORED_FAILURE`).
-- part: listed
{columns | error: substr(error, 1, 4096) AS error};

-- part: listed_of_ended
{columns_of_ended | error: substr(error, 1, 4096) AS error};

-- A namespace of '' stands for all.
-- name: find
SELECT {columns}
FROM jobs WHERE id = ANY ($1::bigint[])
    AND ($2::text = '' OR EXISTS (SELECT FROM functions AS f WHERE f.id = jobs.function AND f.namespace = $2))
UNION ALL
SELECT {columns_of_ended}
FROM ended WHERE id = ANY ($1::bigint[])
    AND ($2::text = '' OR EXISTS (SELECT FROM functions AS f WHERE f.id = ended.function AND f.namespace = $2))
UNION ALL
SELECT {columns}
FROM dead WHERE id = ANY ($1::bigint[])
    AND ($2::text = '' OR EXISTS (SELECT FROM functions AS f WHERE f.id = dead.function AND f.namespace = $2));

-- A function of NULL stands for all of the namespace.
-- name: find_unique
SELECT s.key, j.id, j.state, j.attempt
FROM unnest($1::int[], $2::bytea[], $3::text[]) WITH ORDINALITY AS s (function, uniq, namespace, key)
CROSS JOIN LATERAL (
    SELECT id, state, attempt FROM jobs WHERE function = s.function AND uniq = s.uniq AND uniq IS NOT NULL
    UNION ALL
    SELECT one.id, one.state, one.attempt
    FROM functions AS f
    CROSS JOIN LATERAL (
        SELECT * FROM jobs WHERE function = f.id AND uniq = s.uniq AND uniq IS NOT NULL OFFSET 0) AS one
    WHERE s.function IS NULL AND f.namespace = s.namespace
    LIMIT 1) AS j;

-- The counts of jobs of some functions in some consecutive states, read as the statement `counts` reads all.
-- name: counts_of
SELECT function, state, priority, sum(number)::bigint FROM (
    SELECT function, state, priority, number FROM counts WHERE function = ANY ($1::int[]) AND state BETWEEN $2 AND $3
    UNION ALL
    SELECT entry.* FROM terms t
    CROSS JOIN LATERAL (SELECT * FROM journal j WHERE j.term = t.term AND j.number > t.last_group OFFSET 0) AS j
    CROSS JOIN LATERAL unnest(j.functions, j.states, j.priorities, j.numbers) AS entry (function, state, priority, number)
    WHERE NOT t.gone AND entry.state BETWEEN $2 AND $3 AND entry.function = ANY ($1::int[])
) AS parts (function, state, priority, number)
GROUP BY function, state, priority HAVING sum(number) <> 0;

-- name: functions_after
SELECT id, namespace, name FROM functions WHERE id > $1 ORDER BY id LIMIT $2;

-- The counts of unfinished jobs, as the statement `counts` reads them; the next times are in a row without a function.
-- The last row has the inbox, the next times, and the signs.
-- name: read_backlog
SELECT function, state, priority, sum(number)::bigint, NULL::bigint, NULL::bigint[] FROM (
    SELECT function, state, priority, number FROM counts WHERE state < {succeeded} AND ($4::int[] IS NULL OR function = ANY ($4))
    UNION ALL
    SELECT entry.* FROM terms t
    CROSS JOIN LATERAL (SELECT * FROM journal j WHERE j.term = t.term AND j.number > t.last_group OFFSET 0) AS j
    CROSS JOIN LATERAL unnest(j.functions, j.states, j.priorities, j.numbers) AS entry (function, state, priority, number)
    WHERE NOT t.gone AND entry.state < {succeeded} AND ($4::int[] IS NULL OR entry.function = ANY ($4))
) AS parts (function, state, priority, number)
GROUP BY function, state, priority HAVING sum(number) > 0
UNION ALL
SELECT NULL, (EXISTS (SELECT FROM inbox WHERE id >= $3))::int::smallint, NULL,
    (SELECT due_us FROM jobs WHERE state = {scheduled} AND due_us >= $1 ORDER BY due_us LIMIT 1),
    (SELECT expires_us FROM jobs
        WHERE expires_us > 0 AND state < {leased} AND attempt = 0 AND suspects < 65536 AND expires_us >= $2 ORDER BY expires_us LIMIT 1),
    ARRAY[
        (SELECT coalesce(sum(version), 0)::bigint FROM limits),
        (SELECT number FROM errands ORDER BY number LIMIT 1),
        (SELECT number FROM sent_signals ORDER BY number LIMIT 1),
        (SELECT changes FROM event_ends),
        (SELECT 1 FROM requests WHERE kind = 3 LIMIT 1), -- of runs: mainspring.resources.holds.HolderKind
        CASE WHEN $5 THEN coalesce((SELECT due_us FROM runs_open WHERE due_us IS NOT NULL ORDER BY due_us, id LIMIT 1), 0) END,
        CASE WHEN $5 THEN coalesce((SELECT next_us FROM schedules WHERE next_us IS NOT NULL ORDER BY next_us, name LIMIT 1), 0) END,
        CASE WHEN $5 THEN coalesce((SELECT due_us FROM deadlines ORDER BY due_us, job, kind, schedule LIMIT 1), 0) END];

-- Lists are in the order of ids. Jobs are read from the newest on until enough match; if few jobs are in the requested state, the
-- index of that state finds them sooner.
-- name: mark_jobs
SELECT id, created_us FROM jobs WHERE id < $1 ORDER BY id DESC LIMIT 1 OFFSET $2;

-- name: mark_ended
SELECT id, created_us FROM ended WHERE id < $1 ORDER BY id DESC LIMIT 1 OFFSET $2;

-- name: mark_dead
SELECT id, created_us FROM dead WHERE id < $1 ORDER BY id DESC LIMIT 1 OFFSET $2;

-- Each table returns its newest: over whole tables, PostgreSQL would sort all rows.
-- name: mark_all
SELECT id, created_us FROM (
    (SELECT id, created_us FROM jobs WHERE id < $1 ORDER BY id DESC LIMIT $2 + 1)
    UNION ALL (SELECT id, created_us FROM ended WHERE id < $1 ORDER BY id DESC LIMIT $2 + 1)
    UNION ALL (SELECT id, created_us FROM dead WHERE id < $1 ORDER BY id DESC LIMIT $2 + 1)
) AS newest
ORDER BY id DESC LIMIT 1 OFFSET $2;

-- Of the options, a statement finds parts: its caller compares the rest.
-- part: matches
($5::int IS NULL OR function = $5) AND ($6::bytea IS NULL OR uniq = $6)
    AND ($7::bytea IS NULL OR position($7 IN options) > 0) AND ($8::bytea IS NULL OR position($8 IN options) > 0)
    AND ($9::bytea IS NULL OR position($9 IN options) > 0)
    AND ($10::bytea IS NULL OR substr(error, 1, length($10)) = $10)
    AND created_us >= $11::bigint AND ($12::bigint = 0 OR created_us < $12)
    AND ($13::text = '' OR EXISTS (SELECT FROM functions AS f WHERE f.id = function AND f.namespace = $13));

-- name: list_jobs
SELECT {listed}
FROM jobs
WHERE id < $1 AND id >= $3
    AND ($4::smallint[] IS NULL OR state = ANY ($4)) AND {matches}
ORDER BY id DESC LIMIT $2;

-- If few jobs are in a state, its index returns all of them sooner. If there are more, the answer is NULL: they are not sent.
-- name: few_scheduled
SELECT CASE WHEN count(*) <= $1 THEN coalesce(array_agg(id), '{}') END
FROM (SELECT id FROM jobs WHERE state = {scheduled} AND due_us > -1 LIMIT $1 + 1) AS few;

-- name: few_pending
SELECT CASE WHEN count(*) <= $1 THEN coalesce(array_agg(id), '{}') END
FROM (SELECT id FROM jobs WHERE state = {pending} AND function > 0 LIMIT $1 + 1) AS few;

-- name: few_pending_of
SELECT CASE WHEN count(*) <= $1 THEN coalesce(array_agg(id), '{}') END
FROM (SELECT id FROM jobs WHERE state = {pending} AND function = $2 LIMIT $1 + 1) AS few;

-- name: few_held
SELECT CASE WHEN count(*) <= $1 THEN coalesce(array_agg(id), '{}') END
FROM (SELECT id FROM jobs WHERE state IN ({leased}, {running}) LIMIT $1 + 1) AS few;

-- name: list_these
SELECT {listed}
FROM jobs
WHERE id = ANY ($3::bigint[]) AND id < $1
    AND ($4::smallint[] IS NULL OR state = ANY ($4)) AND {matches}
ORDER BY id DESC LIMIT $2;

-- name: list_ended
SELECT {listed_of_ended}
FROM ended
WHERE id < $1 AND id >= $3
    AND ($4::smallint[] IS NULL OR {succeeded} = ANY ($4)) AND {matches}
ORDER BY id DESC LIMIT $2;

-- name: list_dead
SELECT {listed}
FROM dead
WHERE id < $1 AND id >= $3
    AND ($4::smallint[] IS NULL OR state = ANY ($4)) AND {matches}
ORDER BY id DESC LIMIT $2;

-- The jobs with a tag. Some may be deleted already.
-- name: mark_tagged
SELECT job, created_us FROM tags WHERE namespace = $3 AND tag = $4 AND job < $1 ORDER BY job DESC LIMIT 1 OFFSET $2;

-- name: tagged
SELECT job FROM tags WHERE namespace = $1 AND tag = $2 AND job >= $3 AND job < $4 ORDER BY job DESC;

-- name: list_tagged
SELECT * FROM (
    SELECT {listed}
    FROM jobs WHERE id = ANY ($3::bigint[])
    UNION ALL
    SELECT {listed_of_ended}
    FROM ended WHERE id = ANY ($3::bigint[])
    UNION ALL
    SELECT {listed}
    FROM dead WHERE id = ANY ($3::bigint[])
) AS found
WHERE id < $1
    AND ($4::smallint[] IS NULL OR state = ANY ($4)) AND {matches}
ORDER BY id DESC LIMIT $2;

-- ---- retention ----

-- Rows of jobs that are deleted, among the next ones behind a row.
-- name: sweep_tags
WITH next AS MATERIALIZED (
    SELECT namespace, tag, job FROM tags WHERE (namespace, tag, job) > ($1, $2, $3) ORDER BY namespace, tag, job LIMIT $4
), gone AS (
    DELETE FROM tags USING next
    WHERE tags.namespace = ANY (ARRAY[next.namespace]) AND tags.tag = ANY (ARRAY[next.tag]) AND tags.job = ANY (ARRAY[next.job])
        AND NOT EXISTS (SELECT FROM jobs WHERE id = ANY (ARRAY[next.job]))
        AND NOT EXISTS (SELECT FROM ended WHERE id = ANY (ARRAY[next.job]))
        AND NOT EXISTS (SELECT FROM dead WHERE id = ANY (ARRAY[next.job]))
)
SELECT namespace, tag, job FROM next ORDER BY namespace DESC, tag DESC, job DESC LIMIT 1;

-- Whole partitions are dropped elsewhere. This deletes other rows one by one: cancelled and expired jobs have another retention
-- than the failed ones in the same partition, and jobs that ended at odd times are in the partitions for all other times.
-- name: sweep
WITH old AS MATERIALIZED (
    (SELECT {succeeded} AS state, id, ended_us FROM ended_other WHERE ended_us < $1 AND term >= 0 ORDER BY ended_us LIMIT $3)
    UNION ALL
    (SELECT {cancelled}, id, ended_us FROM dead WHERE state = {cancelled} AND ended_us < $1 AND term >= 0 ORDER BY ended_us LIMIT $3)
    UNION ALL
    (SELECT {expired}, id, ended_us FROM dead WHERE state = {expired} AND ended_us < $1 AND term >= 0 ORDER BY ended_us LIMIT $3)
    UNION ALL
    (SELECT {failed}, id, ended_us FROM dead_other WHERE state = {failed} AND ended_us < $2 AND term >= 0 ORDER BY ended_us LIMIT $3)
    LIMIT $3
), succeeded AS (
    DELETE FROM ended_other AS e USING old
    WHERE old.state = {succeeded} AND e.id = ANY (ARRAY[old.id]) AND e.ended_us = old.ended_us
    RETURNING e.function, {succeeded}::smallint AS state, e.priority
), others AS (
    DELETE FROM dead AS d USING old
    WHERE old.state > {succeeded} AND d.id = ANY (ARRAY[old.id]) AND d.ended_us = old.ended_us
    RETURNING d.function, d.state, d.priority
), shown AS (
    DELETE FROM aliases WHERE created_us < $1 AND NOT EXISTS (SELECT FROM jobs WHERE jobs.id = ANY (ARRAY[job_id]))
)
SELECT function, state, priority, count(*)
FROM (SELECT * FROM succeeded UNION ALL SELECT * FROM others) AS gone
GROUP BY function, state, priority;

-- ---- the inbox ----

-- part: submission
id, namespace, function, uniq, priority, created_us, due_us, expires_us, options, payload;

-- The oldest rows, up to a number and up to a number of bytes; the first one always. `length` reads no payload.
-- name: take_inbox
WITH locked AS MATERIALIZED (
    SELECT id, length(payload) AS size FROM inbox WHERE id >= $2 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
), picked AS MATERIALIZED (
    SELECT id FROM (SELECT id, size, sum(size) OVER (ORDER BY id) AS total FROM locked) AS added
    WHERE total - size = 0 OR total <= $3
)
DELETE FROM inbox USING picked WHERE inbox.id = ANY (ARRAY[picked.id])
RETURNING {submission | id: inbox.id};

-- name: take_from_inbox
DELETE FROM inbox WHERE id = ANY ($1::bigint[])
RETURNING {submission};

-- name: peek_inbox
SELECT {submission | payload: ''::bytea}, length(payload)
FROM inbox WHERE id = ANY ($1::bigint[]) AND ($2::text = '' OR namespace = $2);

-- name: refuse_submissions
WITH gone AS (
    DELETE FROM refused_submissions WHERE number <= (SELECT max(number) - 1000 FROM refused_submissions)
)
INSERT INTO refused_submissions ({submission}, reason)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::bytea[], $4::bytea[], $5::smallint[], $6::bigint[], $7::bigint[], $8::bigint[],
    $9::bytea[], $10::bytea[], $11::text[]);

-- name: read_refused
WITH recent AS (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - $1::bigint AS since_us
), gone AS (
    DELETE FROM refused_submissions WHERE at_us < (SELECT since_us FROM recent)
)
SELECT count(*), min(at_us), (array_agg(reason ORDER BY number DESC))[1]
FROM refused_submissions WHERE at_us >= (SELECT since_us FROM recent);

-- name: alias
INSERT INTO aliases (id, job_id, created_us) SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]);

-- name: aliases
SELECT id, job_id FROM aliases WHERE id = ANY ($1::bigint[]);

-- ---- partitions ----

-- name: partitions
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent IN ('ended'::regclass, 'dead'::regclass, 'runs'::regclass, 'history'::regclass);

-- name: retired
SELECT name, block FROM retired ORDER BY name LIMIT 1 FOR UPDATE SKIP LOCKED;

-- name: count_off
INSERT INTO counts AS c (function, state, priority, number)
SELECT function, state, priority, -number
FROM unnest($1::int[], $2::smallint[], $3::smallint[], $4::bigint[]) AS s (function, state, priority, number)
ORDER BY function, state, priority
ON CONFLICT (function, state, priority) DO UPDATE SET number = c.number + excluded.number;
