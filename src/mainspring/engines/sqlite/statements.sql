-- name: function_id
INSERT INTO functions (namespace, name) VALUES (?, ?)
ON CONFLICT (namespace, name) DO UPDATE SET name = excluded.name
RETURNING id;

-- name: function_named
SELECT id FROM functions WHERE namespace = ? AND name = ?;

-- name: function_numbered
SELECT namespace, name FROM functions WHERE id = ?;

-- name: functions_numbered
SELECT id, namespace, name FROM functions WHERE id IN (SELECT value FROM json_each(?));

-- name: next_term
INSERT INTO terms (node, ended) VALUES (?, 0) RETURNING term;

-- Ends the terms whose nodes have not said goodbye; usually there is none.
-- name: end_open_terms
UPDATE terms SET ended = 1 WHERE ended = 0 RETURNING term, node;

-- A node that closes its store says goodbye, unless it still holds jobs.
-- name: leave
UPDATE terms SET ended = 1 WHERE term = ?1 AND NOT EXISTS (
    SELECT 1 FROM jobs INDEXED BY queue
    WHERE state BETWEEN {leased} AND {running} AND term = ?1 AND state BETWEEN {pending} AND {running} AND term >= 0);

-- name: number_held
SELECT count(*) FROM jobs INDEXED BY queue
WHERE state BETWEEN {leased} AND {running} AND term = ? AND state BETWEEN {pending} AND {running} AND term >= 0;

-- name: terms
SELECT term, node FROM terms;

-- No job has the id 0, and no function the number 0. SQLite would not write a change that changes nothing.
-- name: probe
INSERT INTO jobs (id, function, state, priority, created_us) VALUES (0, 0, {pending}, 1, 0);

-- name: probed
DELETE FROM jobs WHERE id = 0;

-- The columns of a job as `rows.stored` reads them.
-- part: job
id, function, state, priority, uniq, created_us, due_us, expires_us, started_us, ended_us, term, attempt, suspects,
    input_size, output_size, options, error, result, payload, key;

-- part: columns
{job | result: NULL | payload: NULL};

-- The same for lists, with the first bytes of the error: those of many rows must not fill the memory (`sizes.STORED_FAILURE`).
-- part: listed
{columns | error: substr(error, 1, 4096)};

-- part: new
{job | without started_us, ended_us, attempt, suspects, output_size, error, result | uniq: uniq, keep};

-- name: submit
INSERT INTO jobs ({new})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: submit_unique
INSERT INTO jobs ({new})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (function, uniq) WHERE uniq IS NOT NULL AND state < {succeeded} DO NOTHING;

-- name: tag
INSERT INTO tags (namespace, tag, job) VALUES (?, ?, ?);

-- name: live
SELECT id, state, attempt FROM jobs WHERE function = ? AND uniq = ? AND state < {succeeded};

-- name: live_anywhere
SELECT j.id, j.state, j.attempt FROM functions AS f
CROSS JOIN jobs AS j INDEXED BY live ON j.function = f.id AND j.uniq = ?1 AND j.uniq IS NOT NULL AND j.state < {succeeded}
WHERE f.namespace = ?2
LIMIT 1;

-- name: kept
SELECT id, state, attempt FROM jobs
WHERE function = ? AND uniq = ? AND keep = 1 AND state = {succeeded} AND ended_us > ?
ORDER BY ended_us DESC LIMIT 1;

-- name: settle
UPDATE jobs
SET state = ?1, attempt = ?2, suspects = ?3, due_us = ?4, started_us = ?5, ended_us = ?6, output_size = ?7, result = ?8,
    error = ifnull(?9, iif(?1 = {succeeded}, NULL, error)), term = ?10, payload = iif(?1 = {succeeded} AND ?13 IS NOT NULL, nullif(?13, x''), payload),
    attempts = iif(?14 IS NULL, attempts, iif(length(attempts) + length(?14) <= 32768, attempts, '') || ?14)
WHERE id = ?11 AND term = ?12 AND state BETWEEN {leased} AND {running};

-- A success that leaves its payload and has no record, as most have: few values, and a short text, which apsw hashes for each row.
-- name: settle_typical
UPDATE jobs SET state={succeeded}, attempt=?, suspects=?, due_us=?, started_us=?, ended_us=?, output_size=?, result=?, error=NULL
WHERE id=? AND term=? AND state BETWEEN {leased} AND {running};

-- name: settle_forgotten
DELETE FROM jobs WHERE id = ? AND term = ? AND state BETWEEN {leased} AND {running};

-- name: delete
DELETE FROM jobs WHERE id = ?;

-- name: held_elsewhere
SELECT id, state, function, priority, attempt, suspects, term, options, stopping IS NOT NULL
FROM jobs INDEXED BY queue
WHERE state BETWEEN {leased} AND {running} AND term <> ? AND state BETWEEN {pending} AND {running} AND term >= 0;

-- If no job has a key, this is the order of age; versions with keys claim by key instead.
-- name: claim
UPDATE jobs SET state = {leased}, term = ?
WHERE id IN (
    SELECT id FROM jobs INDEXED BY queue
    WHERE state = {pending} AND function = ? AND state BETWEEN {pending} AND {running} AND term >= 0
    ORDER BY priority, key, id LIMIT ?)
RETURNING {job | without function, state, ended_us, term, output_size, result};

-- name: assign
UPDATE jobs SET state = {running}, attempt = ? WHERE id = ? AND term = ? AND state BETWEEN {leased} AND {running};

-- name: cancel
UPDATE jobs SET state = {cancelled}, ended_us = ?, error = ? WHERE id = ? AND state < {leased};

-- name: request_stop
UPDATE jobs SET stopping = ?1
WHERE id = ?2 AND (?3 IS NULL OR term = ?3) AND state BETWEEN {leased} AND {running} AND term >= 0
RETURNING id;

-- name: stopping
SELECT id, stopping FROM jobs WHERE id IN (SELECT value FROM json_each(?)) AND stopping IS NOT NULL;

-- name: redrive
UPDATE OR IGNORE jobs
SET state = ?2, attempt = 0, suspects = 0, started_us = 0, ended_us = 0, expires_us = 0, term = 0, due_us = iif(?3, ?3, due_us),
    stopping = NULL, payload = ifnull(?4, payload), input_size = iif(?4 IS NULL, input_size, ?5)
WHERE id = ?1 AND state > {succeeded} AND term >= 0
RETURNING id;

-- name: reschedule
UPDATE jobs
SET state = ?2, due_us = ifnull(?3, due_us), priority = ifnull(?4, priority), expires_us = ifnull(?5, expires_us)
WHERE id = ?1 AND state < {leased};

-- name: expire
UPDATE jobs SET state = {expired}, ended_us = ? WHERE id = ?;

-- name: late
SELECT id, state FROM jobs INDEXED BY expiring
WHERE expires_us > 0 AND state < {leased} AND attempt = 0 AND suspects < 65536 AND expires_us <= ?
ORDER BY expires_us LIMIT ?;

-- name: due
UPDATE jobs SET state = {pending}
WHERE id IN (SELECT id FROM jobs INDEXED BY due WHERE state = {scheduled} AND due_us <= ? ORDER BY due_us LIMIT ?)
RETURNING function, priority;

-- name: next_due
SELECT min(due_us) FROM jobs INDEXED BY due WHERE state = {scheduled};

-- name: next_expiry
SELECT min(expires_us) FROM jobs INDEXED BY expiring
WHERE expires_us > 0 AND state < {leased} AND attempt = 0 AND suspects < 65536;

-- name: sweep_succeeded
DELETE FROM jobs
WHERE id IN (SELECT id FROM jobs INDEXED BY succeeded WHERE state = {succeeded} AND term >= 0 AND ended_us < ? ORDER BY ended_us LIMIT ?)
RETURNING function, state, priority;

-- name: sweep_unsuccessful
DELETE FROM jobs
WHERE id IN (
    SELECT id FROM jobs INDEXED BY unsuccessful
    WHERE state > {succeeded} AND term >= 0 AND state = ? AND ended_us < ? ORDER BY ended_us LIMIT ?)
RETURNING function, state, priority;

-- name: find
SELECT {columns}
FROM jobs WHERE id = ?;

-- A job of another namespace is not found.
-- name: find_of
SELECT {columns}
FROM jobs WHERE id = ?1 AND (SELECT namespace FROM functions WHERE functions.id = jobs.function) = ?2;

-- A job whose row is on one page, or on few: what is behind the payload, such as the key, is found by a way through all of its pages.
-- name: find_short
SELECT {columns}
FROM jobs
WHERE id = ?1 AND input_size + output_size < 16384
    AND (?2 = '' OR (SELECT namespace FROM functions WHERE functions.id = jobs.function) = ?2);

-- name: arguments
SELECT payload FROM jobs WHERE id = ?;

-- name: result
SELECT result FROM jobs WHERE id = ?;

-- name: recall
SELECT iif(length(payload) <= ?2, payload, NULL), payload IS NOT NULL, attempts FROM jobs WHERE id = ?1;

-- A list is in the order of ids. It reads all jobs from the newest on, a part at a time: up to this one.
-- name: mark
SELECT id, created_us FROM jobs WHERE id < ? ORDER BY id DESC LIMIT 1 OFFSET ?;

-- Of what is stored as bytes, a statement compares parts: its caller compares the rest.
-- part: matches
?4 & (1 << state) AND (?5 IS NULL OR function = ?5) AND (?6 IS NULL OR uniq = ?6)
    AND (?7 IS NULL OR ifnull(key, x'') = ?7) AND (?8 IS NULL OR instr(options, ?8)) AND (?9 IS NULL OR instr(options, ?9))
    AND (?10 IS NULL OR substr(error, 1, length(?10)) = ?10) AND created_us >= ?11 AND (?12 = 0 OR created_us < ?12);

-- name: list
SELECT {listed}
FROM jobs
WHERE id < ?1 AND id >= ?3
    AND {matches}
    AND (?13 = '' OR (SELECT namespace FROM functions WHERE functions.id = jobs.function) = ?13)
ORDER BY id DESC LIMIT ?2;

-- The same among the jobs with a tag, newest first.
-- name: mark_tagged
SELECT id, created_us FROM jobs
WHERE id = (SELECT job FROM tags WHERE namespace = ?3 AND tag = ?4 AND job < ?1 ORDER BY job DESC LIMIT 1 OFFSET ?2);

-- name: list_tagged
SELECT {listed}
FROM tags AS t CROSS JOIN jobs ON jobs.id = t.job
WHERE t.namespace = ?14 AND t.tag = ?15 AND t.job < ?1 AND t.job >= ?3
    AND {matches}
ORDER BY t.job DESC LIMIT ?2;

-- If few jobs are in a state, its partial index returns all of them sooner. One row has their ids: after each row, the thread of the
-- queries would have to get the interpreter again.
-- name: few_scheduled
SELECT count(*), json_group_array(id) FROM (
    SELECT id FROM jobs INDEXED BY due WHERE state = {scheduled} LIMIT ?3
);

-- name: few_queued
SELECT count(*), json_group_array(id) FROM (
    SELECT id FROM jobs INDEXED BY queue WHERE state BETWEEN {pending} AND {running} AND term >= 0 AND state = ?1 LIMIT ?3
);

-- name: few_queued_of
SELECT count(*), json_group_array(id) FROM (
    SELECT id FROM jobs INDEXED BY queue WHERE state BETWEEN {pending} AND {running} AND term >= 0 AND state = ?1 AND function = ?2 LIMIT ?3
);

-- name: few_unsuccessful
SELECT count(*), json_group_array(id) FROM (
    SELECT id FROM jobs INDEXED BY unsuccessful WHERE state > {succeeded} AND term >= 0 AND state = ?1 LIMIT ?3
);

-- name: few_roots
SELECT count(*), json_group_array(id) FROM (
    SELECT id FROM jobs INDEXED BY roots WHERE term < 0 AND state = ?1 LIMIT ?3
);

-- name: few_roots_of
SELECT count(*), json_group_array(id) FROM (
    SELECT id FROM jobs INDEXED BY roots WHERE term < 0 AND state = ?1 AND function = ?2 LIMIT ?3
);

-- name: list_these
SELECT {listed}
FROM jobs
WHERE id IN (SELECT value FROM json_each(?3)) AND id < ?1
    AND {matches}
    AND (?13 = '' OR (SELECT namespace FROM functions WHERE functions.id = jobs.function) = ?13)
ORDER BY id DESC LIMIT ?2;

-- The first job of the queue without a key, and those of the first queues with one: each is a step in the index.
-- name: first_in_line
WITH RECURSIVE keys (key, number) AS (
    SELECT (SELECT key FROM jobs INDEXED BY queue
        WHERE state = {pending} AND state BETWEEN {pending} AND {running} AND term >= 0 AND function = ?1 AND priority = ?2 AND key > x''
        ORDER BY key LIMIT 1), 1
    UNION ALL
    SELECT (SELECT key FROM jobs INDEXED BY queue
        WHERE state = {pending} AND state BETWEEN {pending} AND {running} AND term >= 0 AND function = ?1 AND priority = ?2 AND key > keys.key
        ORDER BY key LIMIT 1), number + 1
    FROM keys WHERE keys.key IS NOT NULL AND number < ?3)
SELECT * FROM (
    SELECT max(created_us, due_us) FROM jobs INDEXED BY queue
    WHERE state = {pending} AND state BETWEEN {pending} AND {running} AND term >= 0 AND function = ?1 AND priority = ?2 AND key IS NULL
    ORDER BY id LIMIT 1)
UNION ALL
SELECT (
    SELECT max(created_us, due_us) FROM jobs INDEXED BY queue
    WHERE state = {pending} AND state BETWEEN {pending} AND {running} AND term >= 0 AND function = ?1 AND priority = ?2 AND key = keys.key
    ORDER BY id LIMIT 1)
FROM keys WHERE keys.key IS NOT NULL;

-- name: counts
SELECT function, state, priority, number FROM counts WHERE number <> 0;

-- name: counts_of
SELECT state, priority, number FROM counts WHERE function = ? AND state < {succeeded} AND number <> 0;

-- name: dead_letters
SELECT sum(number) FROM counts WHERE function = ? AND state = {failed};

-- The numbers of jobs in states from ?1 to ?2. One row has all: after each row, the thread of the queries would have to get the
-- interpreter again.
-- part: shown
SELECT json_group_array(json_array(function, state, priority, number)) FROM counts
WHERE state BETWEEN ?1 AND ?2 AND number <> 0 AND function;

-- name: counts_between
{shown} > ?3 AND function <= ?4;

-- name: counts_among
{shown} IN (SELECT value FROM json_each(?3));

-- name: page_end
SELECT id FROM functions WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?;

-- name: count
INSERT INTO counts (function, state, priority, number) VALUES (?, ?, ?, ?)
ON CONFLICT (function, state, priority) DO UPDATE SET number = number + excluded.number;

-- Root jobs: running under the term -1 from their beginning to their end, and under it for ever.
-- name: begun
UPDATE jobs SET started_us = ?, payload = NULL WHERE id = ?;

-- name: pending
SELECT {job | result: NULL}
FROM jobs INDEXED BY queue
WHERE state = {pending} AND function = ? AND state BETWEEN {pending} AND {running} AND term >= 0
ORDER BY priority, key, id LIMIT ?;

-- name: waiting
SELECT {job | result: NULL}
FROM jobs WHERE id = ? AND state < {leased};

-- name: take
UPDATE jobs SET state = {running}, term = -1, attempt = 0, started_us = ?, payload = NULL, error = NULL WHERE id = ?;

-- name: end_root
UPDATE jobs SET state = ?, attempt = 1, ended_us = ?, output_size = ?, result = ?, error = ?
WHERE id = ? AND state = {running} AND term = -1
RETURNING {columns};

-- name: forget_root
DELETE FROM jobs WHERE id = ? AND state > {running} AND term = -1 RETURNING function, state, priority;

-- name: withdraw
DELETE FROM jobs WHERE id = ? AND state < {succeeded} RETURNING id, term, state, function, priority;

-- name: is_held
SELECT 1 FROM jobs WHERE id = ? AND term = ? AND state BETWEEN {leased} AND {running};
