-- Streams of jobs (mainspring.streams). The streams of a run belong to its root job.

-- name: stream_heads
SELECT job, name, items, bytes, part, writer, seen, refused, at_us FROM job_streams WHERE job {among($1)} ORDER BY job, name;

-- name: put_stream_heads
INSERT INTO job_streams (job, name, items, bytes, part, writer, seen, refused, at_us)
{rows(bigint, text, bigint, bigint, int, bigint, bigint, bigint, bigint)}
ON CONFLICT (job, name) DO UPDATE SET items = excluded.items, bytes = excluded.bytes, part = excluded.part,
    writer = excluded.writer, seen = excluded.seen, refused = excluded.refused, at_us = excluded.at_us;

-- name: add_stream_blocks
INSERT INTO stream_blocks (job, name, first, length, attempt, part, at_us, items)
{rows(bigint, text, bigint, int, int, int, bigint, bytea)};

-- name: streamed_jobs
SELECT DISTINCT job FROM job_streams WHERE job > $1 ORDER BY job LIMIT $2;

-- name: forget_stream_blocks
DELETE FROM stream_blocks WHERE job {among($1)};

-- name: forget_stream_heads
DELETE FROM job_streams WHERE job {among($1)};

-- The blocks that have items from a number, up to a number of bytes, and at least one block, in any order.
-- name: blocks_of_stream
SELECT job, name, first, length, attempt, part, at_us, items FROM (
    SELECT found.*, sum(length(found.items)) OVER (ORDER BY found.first) - length(found.items) AS before FROM (
        SELECT job, name, first, length, attempt, part, at_us, items FROM stream_blocks
        WHERE job = $1 AND name = $2 AND first >= coalesce(
            (SELECT max(first) FROM stream_blocks WHERE job = $1 AND name = $2 AND first <= $3), 0)
        ORDER BY first LIMIT $4
    ) AS found
) AS summed WHERE before < $5;

-- name: stream_lengths
SELECT job, CAST(sum(items) AS bigint) FROM job_streams WHERE job {among($1)} GROUP BY job;
