-- Schedules: what users say of them and how they stand, as MessagePack of mainspring.schedules.model.
CREATE TABLE schedules (
    id       INTEGER PRIMARY KEY,
    name     TEXT NOT NULL UNIQUE,
    next_us  INTEGER,                      -- the next fire time, NULL where none comes
    queued   INTEGER NOT NULL,             -- rows of it that wait
    version  INTEGER NOT NULL,             -- changes are guarded by it
    schedule BLOB NOT NULL,
    state    BLOB NOT NULL
) STRICT;

CREATE INDEX schedules_due ON schedules (next_us, name) WHERE next_us IS NOT NULL;
CREATE INDEX schedules_queued ON schedules (name) WHERE queued > 0;

-- What became of each fire time. The primary key is what makes it single: rows are never deleted.
CREATE TABLE fires (
    schedule TEXT NOT NULL,
    fire_us  INTEGER NOT NULL,
    standing INTEGER NOT NULL,             -- as in mainspring.schedules.store.Standing
    job      INTEGER,
    fire     BLOB NOT NULL,                -- MessagePack of mainspring.schedules.model.Fire
    PRIMARY KEY (schedule, fire_us)
) STRICT, WITHOUT ROWID;

CREATE INDEX fires_unfinished ON fires (schedule, fire_us) WHERE standing < 4;
CREATE INDEX fires_of_job ON fires (job) WHERE standing BETWEEN 1 AND 2;
CREATE INDEX fires_to_mend ON fires (standing) WHERE standing BETWEEN 2 AND 3;

-- How many parents of a child have not arrived yet, by occasion; rows go when all have.
CREATE TABLE joins (
    child        TEXT NOT NULL,
    fire_us      INTEGER NOT NULL,
    parents_left INTEGER NOT NULL,
    stopped      INTEGER NOT NULL,
    PRIMARY KEY (child, fire_us)
) STRICT, WITHOUT ROWID;

-- Which sets of schedules code has declared, and when they were seen.
CREATE TABLE declarations (
    app           TEXT NOT NULL,
    digest        BLOB NOT NULL,
    first_seen_us INTEGER NOT NULL,
    last_seen_us  INTEGER NOT NULL,
    PRIMARY KEY (app, digest)
) STRICT, WITHOUT ROWID;
