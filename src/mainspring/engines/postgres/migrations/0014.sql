-- compatible from: 7
-- The records of a job's attempts, as lines of JSON (mainspring.jobs.settlement_records); NULL if it has none, as most jobs. And the
-- payload of a job that has succeeded, if it is small. (A node of the version before keeps neither.)
ALTER TABLE jobs ADD COLUMN attempts bytea;
ALTER TABLE ended ADD COLUMN payload bytea, ADD COLUMN attempts bytea;
ALTER TABLE dead ADD COLUMN attempts bytea;

-- What a success leaves of a payload: all of it if `kept` is NULL. The server inlines both functions.
CREATE FUNCTION kept_payload(payload bytea, kept bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN kept IS NULL THEN payload ELSE nullif(kept, '') END
$$;

CREATE FUNCTION appended_record(attempts bytea, record bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN record IS NULL THEN attempts WHEN length(attempts) + length(record) <= 32768 THEN attempts || record ELSE record
    END
$$;

-- `usual` with the arguments and the record of each success, in the place of which nodes of this version call it.
CREATE FUNCTION usual_2(
    bigint, bigint,
    bigint[], bigint[], int[], int[], bigint[], bigint[], bigint[], bytea[], bytea[],
    bigint[], int[], bigint[], bigint[], bigint[], bigint[], int[], int[], smallint[], smallint[], smallint[], boolean[], boolean[],
    bytea[], bytea[], bytea[], bytea[], boolean[],
    int[], smallint[], smallint[], int[],
    bytea[], bytea[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    written bigint;
BEGIN
    PERFORM enter($1, $2);
    IF cardinality($3) > 0 THEN
        WITH gone AS (
            DELETE FROM jobs USING unnest(
                $3, $4, $5, $6, $7, $8, $9, $10, $11, $34, $35)
            AS s (id, term, attempt, suspects, started_us, ended_us, due_us, result, error, payload, record)
            WHERE jobs.id = ANY (ARRAY[s.id]) AND jobs.term = s.term
            RETURNING jobs.id, s.ended_us, jobs.created_us, jobs.term, s.due_us, jobs.expires_us, s.started_us, jobs.function, s.attempt,
                s.suspects, jobs.input_size, jobs.priority, jobs.keep, jobs.foreground, jobs.uniq, jobs.options, s.error, s.result,
                jobs.waited, kept_payload(jobs.payload, s.payload) AS payload, appended_record(jobs.attempts, s.record) AS attempts
        ), stored AS (
            INSERT INTO ended (id, ended_us, created_us, term, due_us, expires_us, started_us, function, attempt, suspects, input_size,
                output_size, priority, keep, foreground, uniq, options, error, result,
                payload, attempts)
            SELECT id, coalesce(ended_us, 0), created_us, term, due_us, expires_us, started_us, function, attempt, suspects, input_size,
                coalesce(length(result), 0), priority, keep, foreground, uniq, options, error, result,
                payload, attempts
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
