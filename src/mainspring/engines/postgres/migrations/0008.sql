-- compatible from: 7
-- A group as nearly all are: jobs that have succeeded, and new ones (mainspring.engines.postgres.writer). True: it is written, as by the
-- statements `succeed` and `submit_unique` of jobs.sql with the fence before them and the journal behind. False: something is not as
-- expected, and nothing is written. The error that undoes it ends in the block around it, so that it leaves no line in the server's log.
-- Nodes call the function of their own version: a later one that takes or does something else gets another name.
CREATE FUNCTION usual(
    bigint, bigint,
    bigint[], bigint[], int[], int[], bigint[], bigint[], bigint[], bytea[], bytea[],
    bigint[], int[], bigint[], bigint[], bigint[], bigint[], int[], int[], smallint[], smallint[], smallint[], boolean[], boolean[],
    bytea[], bytea[], bytea[], bytea[], boolean[],
    int[], smallint[], smallint[], int[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    written bigint;
BEGIN
    PERFORM enter($1, $2);
    IF cardinality($3) > 0 THEN
        WITH gone AS (
            DELETE FROM jobs USING unnest(
                $3, $4, $5, $6, $7, $8, $9, $10, $11)
            AS s (id, term, attempt, suspects, started_us, ended_us, due_us, result, error)
            WHERE jobs.id = ANY (ARRAY[s.id]) AND jobs.term = s.term
            RETURNING jobs.id, s.ended_us, jobs.created_us, jobs.term, s.due_us, jobs.expires_us, s.started_us, jobs.function, s.attempt,
                s.suspects, jobs.input_size, jobs.priority, jobs.keep, jobs.foreground, jobs.uniq, jobs.options, s.error, s.result,
                jobs.waited
        ), stored AS (
            INSERT INTO ended (id, ended_us, created_us, term, due_us, expires_us, started_us, function, attempt, suspects, input_size,
                output_size, priority, keep, foreground, uniq, options, error, result)
            SELECT id, coalesce(ended_us, 0), created_us, term, due_us, expires_us, started_us, function, attempt, suspects, input_size,
                coalesce(length(result), 0), priority, keep, foreground, uniq, options, error, result
            FROM gone
        )
        SELECT count(*) INTO written FROM gone WHERE waited IS NOT TRUE;
        IF written < cardinality($3) THEN
            RAISE 'a lease has ended, or somebody waits' USING ERRCODE = 'MS004';
        END IF;
    END IF;
    IF cardinality($12) > 0 THEN
        INSERT INTO jobs (id, place, created_us, due_us, expires_us, term, function, input_size, state, priority, slot, foreground,
            waited, options, payload, key, uniq, keep)
        SELECT s.id, base + s.rank, s.created_us, s.due_us, s.expires_us, coalesce(s.term, 0), s.function, s.input_size, s.state,
            s.priority, s.slot, s.foreground, s.waited, s.options, s.payload, s.key, s.uniq, s.keep
        FROM (SELECT nextval('places') << 20 AS base, set_config('lock_timeout', '100ms', true)) AS places, unnest(
            $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29)
        AS s (id, rank, created_us, due_us, expires_us, term, function, input_size, state, priority, slot, foreground, waited, options,
            payload, key, uniq, keep)
        ON CONFLICT (function, uniq) WHERE uniq IS NOT NULL DO NOTHING;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written < cardinality($12) THEN
            RAISE 'a unique is taken' USING ERRCODE = 'MS004';
        END IF;
    END IF;
    INSERT INTO journal (term, number, functions, states, priorities, numbers) VALUES ($1, $2, $30, $31, $32, $33);
    RETURN true;
EXCEPTION
    WHEN SQLSTATE 'MS004' OR lock_not_available THEN
        RETURN false;
END
$$;
