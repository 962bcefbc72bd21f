-- compatible from: 22
-- Local steps of workflows in transactions of users: the row of a step was committed with its effect, or is that of its failure.

-- A row stays until its run is forgotten: an attempt by a worker that has lost the run may come at any time, and must find it.
CREATE TABLE recorded_steps (
    run    bigint NOT NULL,
    step   int    NOT NULL,                      -- its number in the run
    at_us  bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    call   bytea  NOT NULL,                      -- the digest of its function and arguments
    failed boolean NOT NULL,
    result bytea  NOT NULL,                      -- or the error: JSON of mainspring.jobs.model.JobFailure
    PRIMARY KEY (run, step)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE recorded_steps ALTER COLUMN result SET STORAGE EXTERNAL;

-- The keys of runs follow from it: a node gives a worker the key of a run with each decision (mainspring.workflows.model.step_key).
INSERT INTO secrets VALUES ('steps', decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'));

-- Returns the number of a run. A role needs its key to read or record one of its steps.
CREATE FUNCTION step_run(run text, key bytea) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    IF run COLLATE "C" ~ '^[1-9][0-9]{0,17}$'
        AND key = (SELECT substr(sha256(value || int8send(run::bigint)), 1, 16) FROM secrets WHERE name = 'steps') THEN
        RETURN run::bigint;
    END IF;
    RAISE invalid_authorization_specification USING
        MESSAGE = 'mainspring: this is not the key of a run of this store', HINT = 'The connection may lead to another store.';
END $$;

-- Returns the begin of the present transaction, and the recorded call and outcome of a step; NULL if it is not recorded.
CREATE FUNCTION recorded_step(run text, step int, key bytea, OUT begun text, OUT call bytea, OUT failed boolean, OUT result bytea)
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
DECLARE
    number CONSTANT bigint := step_run(run, key);
BEGIN
    SELECT s.call, s.failed, s.result INTO call, failed, result FROM recorded_steps AS s WHERE s.run = number AND s.step = step;
    begun := extract(epoch FROM now())::text;
END $$;

-- Records a step in the transaction that `recorded_step` was called in. It never waits for a node, and no node waits for it; it
-- waits for another transaction that is recording the same step. Returns `repeated` if the step is recorded already, `closed` if
-- the run is not open, and `other` in another transaction: then it records nothing.
CREATE FUNCTION record_step(run text, step int, key bytea, begun text, call bytea, failed boolean, result bytea)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
DECLARE
    number CONSTANT bigint := step_run(run, key);
    fault text := CASE
        WHEN step IS NULL OR step < 1 THEN 'the number of a step is 1 or higher'
        WHEN call IS NULL OR length(call) <> 8 THEN 'the digest of a call has 8 bytes'
        WHEN failed IS NULL THEN 'a step has failed or not'
        WHEN result IS NULL OR length(result) > 268435456 THEN format(
            'the result has %s bytes, and a step takes 268435456: store larger data elsewhere, and return its location',
            coalesce(length(result)::text, 'no'))
    END;
BEGIN
    IF fault IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'mainspring: ' || fault;
    END IF;
    IF begun IS DISTINCT FROM extract(epoch FROM now())::text THEN
        RETURN 'other';
    END IF;
    INSERT INTO recorded_steps (run, step, call, failed, result) VALUES (number, step, call, failed, result) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN 'repeated';
    END IF;
    -- After the row, with a newer snapshot: if the row of an earlier attempt was forgotten before, then with its run, which was closed.
    IF NOT EXISTS (SELECT FROM runs_open AS r WHERE r.id = number AND r.status = 0) THEN
        DELETE FROM recorded_steps AS s WHERE s.run = number AND s.step = step;
        RETURN 'closed';
    END IF;
    RETURN 'recorded';
END $$;

DO $do$
DECLARE
    one regprocedure;
BEGIN
    FOREACH one IN ARRAY ARRAY['recorded_step(text, int, bytea)', 'record_step(text, int, bytea, text, bytea, boolean, bytea)',
        'step_run(text, bytea)']::regprocedure[]
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', one, current_schema());
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', one);
    END LOOP;
END $do$;
