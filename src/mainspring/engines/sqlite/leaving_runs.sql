-- Open runs that leave the store, with all that they need. Temporary tables have the ids of the runs and jobs that leave.

-- While the runs are moved, a table has one row about that, and the version of the schema keeps nodes away (`store_file.MOVING`).
-- name: mark
CREATE TABLE move (
    id     BLOB NOT NULL,                   -- chosen at random
    target BLOB NOT NULL,                   -- the identity of the store that the runs enter
    shown  TEXT NOT NULL                    -- its address, without a password
) STRICT;

-- name: note_mark
INSERT INTO move (id, target, shown) VALUES (?, ?, ?);

-- name: read_mark
SELECT id, target, shown FROM move;

-- name: remove_mark
DROP TABLE move;

-- Closed runs go with the open one that continues them: their handles lead to it.
-- name: choose_runs
CREATE TEMP TABLE leaving_runs AS
    SELECT id FROM runs WHERE root IN (SELECT root FROM runs WHERE status = 0);

-- Those that leave, and have or await slots of resources, which stay.
-- name: holders
SELECT count(*) FROM leaving_runs WHERE id IN (
    SELECT holder FROM holds WHERE kind = 3 UNION ALL SELECT holder FROM requests WHERE kind = 3);

-- Root jobs, and jobs that wait to begin as runs: those of workflows, and those that have early signals.
-- name: choose_jobs
CREATE TEMP TABLE leaving_jobs AS
    SELECT id FROM jobs WHERE id IN (SELECT root FROM runs WHERE status = 0) AND state < {succeeded}
    UNION
    SELECT id FROM jobs WHERE state < {leased} AND id IN (SELECT job FROM early_signals)
    UNION
    SELECT jobs.id FROM jobs JOIN functions ON functions.id = jobs.function
    WHERE state < {leased} AND EXISTS (
        SELECT 1 FROM definitions AS d WHERE d.namespace = functions.namespace AND CAST(d.name AS BLOB) = functions.name);

-- Jobs that may be activities or decision tasks: the options contain a key `run`.
-- name: jobs_with_runs
SELECT id, options FROM jobs WHERE state < {succeeded} AND term >= 0 AND options IS NOT NULL AND instr(options, x'72756e');

-- name: is_open
SELECT 1 FROM runs WHERE id = ? AND status = 0;

-- name: choose_job
INSERT INTO leaving_jobs SELECT ?1 WHERE ?1 NOT IN (SELECT id FROM leaving_jobs);

-- name: numbers
SELECT (SELECT count(*) FROM runs WHERE status = 0), (SELECT count(*) FROM leaving_jobs), (SELECT count(*) FROM errands);

-- name: jobs
SELECT id, function, state, priority, uniq, created_us, due_us, expires_us, started_us, ended_us, term, attempt, suspects,
    input_size, output_size, options, error, NULL, payload, key, keep, stopping, attempts
FROM jobs WHERE id IN (SELECT id FROM leaving_jobs) ORDER BY id;

-- name: definitions
SELECT namespace, name, version, definition FROM definitions;

-- name: runs
SELECT id, root, namespace, workflow_id, type, version, status, started_us, closed_us, events, history_bytes, input_size,
    output_size, due_us, about, decision, slot, parked_us, builds, parking, paused_us
FROM runs WHERE id IN (SELECT id FROM leaving_runs) ORDER BY id;

-- name: history
SELECT run, first, block FROM history WHERE run IN (SELECT id FROM leaving_runs) ORDER BY run, first;

-- name: snapshots
SELECT run, history_bytes, state FROM snapshots WHERE run IN (SELECT id FROM leaving_runs);

-- name: payloads
SELECT run, event, data FROM payloads WHERE run IN (SELECT id FROM leaving_runs);

-- name: early_signals
SELECT job, number, bytes, request, name, input FROM early_signals WHERE job IN (SELECT id FROM leaving_jobs) ORDER BY job, number;

-- name: errands
SELECT errand FROM errands ORDER BY number;

-- name: tags
SELECT t.namespace, t.tag, t.job, jobs.created_us FROM tags AS t JOIN jobs ON jobs.id = t.job
WHERE t.job IN (SELECT id FROM leaving_jobs);

-- name: deadlines
SELECT job, kind, schedule, due_us FROM deadlines WHERE job IN (SELECT id FROM leaving_jobs);

-- name: job_values
SELECT job, name, attempt, number, at_us, value FROM job_values WHERE job IN (SELECT id FROM leaving_jobs);

-- name: job_streams
SELECT job, name, items, bytes, part, writer, seen, refused, at_us FROM job_streams WHERE job IN (SELECT id FROM leaving_jobs);

-- name: stream_blocks
SELECT job, name, first, length, attempt, part, at_us, items FROM stream_blocks WHERE job IN (SELECT id FROM leaving_jobs);

-- The fire time of a schedule that began one of the runs: as its job is gone, the repair of schedules ends it.
-- name: release_fires
UPDATE fires SET standing = 2 WHERE standing = 1 AND job IN (SELECT id FROM leaving_jobs);

-- name: uncount
INSERT INTO counts (function, state, priority, number)
SELECT function, min(state, {leased}), priority, -count(*) FROM jobs WHERE id IN (SELECT id FROM leaving_jobs) GROUP BY 1, 2, 3
ON CONFLICT (function, state, priority) DO UPDATE SET number = number + excluded.number;

-- name: delete_history
DELETE FROM history WHERE run IN (SELECT id FROM leaving_runs);

-- name: delete_snapshots
DELETE FROM snapshots WHERE run IN (SELECT id FROM leaving_runs);

-- name: delete_payloads
DELETE FROM payloads WHERE run IN (SELECT id FROM leaving_runs);

-- name: delete_runs
DELETE FROM runs WHERE id IN (SELECT id FROM leaving_runs);

-- name: delete_early_signals
DELETE FROM early_signals WHERE job IN (SELECT id FROM leaving_jobs);

-- name: delete_errands
DELETE FROM errands;

-- name: delete_jobs
DELETE FROM jobs WHERE id IN (SELECT id FROM leaving_jobs);
