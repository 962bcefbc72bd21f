-- compatible from: 4
-- Schedules. What users say of them changes seldom, and every node knows it; how they stand changes with each fire time. So these
-- are two tables, and the second one is narrow. Names are compared by their bytes, as everywhere else.
-- (An older node would end the job of a fire time without what follows from it.)

-- What users say, as MessagePack of mainspring.schedules.model.Schedule. A removed schedule leaves its name, so that the other nodes
-- hear of it: they read what has a newer version than what they know.
CREATE TABLE specifications (
    name     text   COLLATE "C" PRIMARY KEY,
    version  bigint NOT NULL,               -- of the catalogue that brought it
    schedule bytea                          -- NULL once it is removed
);

CREATE INDEX specifications_version ON specifications (version);

-- The number of changes to the specifications so far: one row.
CREATE TABLE catalogue (version bigint NOT NULL);
INSERT INTO catalogue VALUES (0);

-- How they stand. One update for each fire time, never in place: `next_us` is indexed.
CREATE TABLE schedules (
    name    text   COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,                -- changes are guarded by it
    next_us bigint,                         -- the next fire time, NULL where none comes
    queued  int    NOT NULL,                -- rows of it that wait
    state   bytea  NOT NULL                 -- MessagePack of mainspring.schedules.model.ScheduleState
) WITH (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX schedules_due ON schedules (next_us, name) WHERE next_us IS NOT NULL;
CREATE INDEX schedules_queued ON schedules (queued) WHERE queued > 0;

-- What became of each fire time. The primary key is what makes it single: rows are never deleted. Each is written once when it is
-- decided and once when its run has ended. `live` and `job` are set only as long as somebody looks for the row by them, so that what
-- is finished is in no index but the first.
CREATE TABLE fires (
    schedule text     COLLATE "C" NOT NULL,
    fire_us  bigint   NOT NULL,
    job      bigint,                        -- until it has an outcome
    standing smallint NOT NULL,             -- as in mainspring.schedules.store.Standing
    live     text     COLLATE "C",          -- the schedule's name again, until the row is finished
    fire     bytea    NOT NULL,             -- MessagePack of mainspring.schedules.model.Fire
    PRIMARY KEY (schedule, fire_us)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX fires_live ON fires (live) WHERE live IS NOT NULL;
CREATE INDEX fires_job ON fires (job) WHERE job IS NOT NULL;
CREATE INDEX fires_to_mend ON fires (standing) WHERE standing IN (2, 3);

-- How many parents of a child have not arrived yet, by occasion; rows go when all have.
CREATE TABLE joins (
    child        text    COLLATE "C" NOT NULL,
    fire_us      bigint  NOT NULL,
    parents_left int     NOT NULL,
    stopped      boolean NOT NULL,
    PRIMARY KEY (child, fire_us)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Which sets of schedules code has declared, and when they were seen.
CREATE TABLE declarations (
    app           text   NOT NULL,
    digest        bytea  NOT NULL,
    first_seen_us bigint NOT NULL,
    last_seen_us  bigint NOT NULL,
    PRIMARY KEY (app, digest)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The first step of every group that has to do with schedules: returns the catalogue's version, which is that of the whole group.
-- Whoever changes specifications waits until the groups under way that rely on them have ended, and keeps new ones out.
CREATE FUNCTION enter_schedules(alone boolean) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    lock CONSTANT bigint := hashtextextended(current_schema() || ' schedules', 0);
BEGIN
    IF alone THEN
        PERFORM pg_advisory_xact_lock(lock);
    ELSE
        PERFORM pg_advisory_xact_lock_shared(lock);
    END IF;
    -- Who is frozen with a lock keeps it for some seconds. The others wait a little, and then pass over what only he would fire.
    PERFORM set_config('lock_timeout', '300ms', true);
    RETURN (SELECT version FROM catalogue);  -- in a snapshot of its own, behind the lock
END
$$;
