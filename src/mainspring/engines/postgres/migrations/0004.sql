-- compatible from: 3
-- Schedules: what users say of them and how they stand, as MessagePack of mainspring.schedules.model.
CREATE TABLE schedules (
    name     text   PRIMARY KEY,
    next_us  bigint,                             -- the next fire time, NULL where none comes
    version  bigint NOT NULL,                    -- changes are guarded by it
    queued   int    NOT NULL,                    -- rows of it that wait
    schedule bytea  NOT NULL,
    state    bytea  NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX schedules_due ON schedules (next_us, name) WHERE next_us IS NOT NULL;
CREATE INDEX schedules_queued ON schedules (name) WHERE queued > 0;

-- Counts the changes of specifications, and whoever changes any has its one row: nodes remember them until it changes.
CREATE TABLE schedule_changes (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    generation bigint  NOT NULL
);
INSERT INTO schedule_changes (generation) VALUES (1);

-- What became of each fire time. The primary key is what makes it single: rows are never deleted.
CREATE TABLE fires (
    fire_us  bigint   NOT NULL,
    job      bigint,
    standing smallint NOT NULL,                  -- as in mainspring.schedules.store.Standing
    schedule text     NOT NULL,
    fire     bytea    NOT NULL,                  -- MessagePack of mainspring.schedules.model.Fire
    PRIMARY KEY (schedule, fire_us)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX fires_unfinished ON fires (schedule, fire_us) WHERE standing < 4;
CREATE INDEX fires_of_job ON fires (job) WHERE standing BETWEEN 1 AND 2;
CREATE INDEX fires_stuck ON fires (schedule, fire_us) WHERE standing = 3;

-- How many parents of a child have not arrived yet, by occasion; rows go when all have.
CREATE TABLE joins (
    fire_us      bigint  NOT NULL,
    parents_left int     NOT NULL,
    stopped      boolean NOT NULL,
    child        text    NOT NULL,
    PRIMARY KEY (child, fire_us)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Which sets of schedules code has declared, and when they were seen.
CREATE TABLE declarations (
    app           text   NOT NULL,
    digest        bytea  NOT NULL,
    first_seen_us bigint NOT NULL,
    last_seen_us  bigint NOT NULL,
    PRIMARY KEY (app, digest)
);
