-- One row per function name that was ever submitted; rows of jobs carry its number.
CREATE TABLE functions (
    id        INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    name      BLOB NOT NULL,
    UNIQUE (namespace, name)
) STRICT;

-- One row per run of a node: which node had a term. Handles of its jobs are made of both.
CREATE TABLE terms (
    term INTEGER PRIMARY KEY,
    node TEXT NOT NULL
) STRICT;

-- Every job, live and ended. The id rises with submission, so that neighbours in time are neighbours on disk.
-- Times are microseconds of wall time, 0 where there is none; states and priorities as in mainspring.jobs.model.
CREATE TABLE jobs (
    id          INTEGER PRIMARY KEY,
    function    INTEGER NOT NULL,
    state       INTEGER NOT NULL,
    priority    INTEGER NOT NULL,
    uniq        BLOB,                       -- NULL where the job has none
    keep        INTEGER,                    -- 1 where it was submitted with keep_unique
    created_us  INTEGER NOT NULL,
    due_us      INTEGER NOT NULL DEFAULT 0,
    expires_us  INTEGER NOT NULL DEFAULT 0,
    started_us  INTEGER NOT NULL DEFAULT 0,
    ended_us    INTEGER NOT NULL DEFAULT 0,
    term        INTEGER NOT NULL DEFAULT 0,
    attempt     INTEGER NOT NULL DEFAULT 0,
    suspects    INTEGER NOT NULL DEFAULT 0,
    input_size  INTEGER NOT NULL DEFAULT 0,
    output_size INTEGER NOT NULL DEFAULT 0,
    options     BLOB,                       -- MessagePack of mainspring.jobs.model.Options
    payload     BLOB,                       -- NULL once the job has succeeded
    result      BLOB,
    error       BLOB                        -- JSON of the last failure
) STRICT;

-- Pending jobs in the order in which they are claimed (every index ends with the id), and held ones for recovery.
CREATE INDEX queue ON jobs (state, function, priority) WHERE state BETWEEN 1 AND 3;
-- A live job of a function has its unique to itself: this is what makes a computation single.
CREATE UNIQUE INDEX live ON jobs (function, uniq) WHERE uniq IS NOT NULL AND state < 4;
CREATE INDEX kept ON jobs (function, uniq, ended_us) WHERE keep = 1 AND state = 4;
CREATE INDEX due ON jobs (due_us) WHERE state = 0;
-- A job that has been tried no longer expires: without `attempt = 0` here, it would be looked at for ever.
CREATE INDEX expiring ON jobs (expires_us) WHERE expires_us > 0 AND state < 2 AND attempt = 0;
-- Results and dead letters are kept for different times; in one index, each sweep would pass all dead letters.
CREATE INDEX succeeded ON jobs (ended_us) WHERE state = 4;
CREATE INDEX unsuccessful ON jobs (state, ended_us) WHERE state > 4;

-- How many jobs there are, kept by deltas in every transaction. Held jobs are counted as leased (2).
CREATE TABLE counts (
    function INTEGER NOT NULL,
    state    INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    PRIMARY KEY (function, state, priority)
) STRICT, WITHOUT ROWID;
