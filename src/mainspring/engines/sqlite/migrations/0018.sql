-- The schema. Version 18 is the first one that this version of Mainspring opens; later ones have a file each.

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
    payload     BLOB,                       -- of a job that has succeeded: kept if it is small
    result      BLOB,
    error       BLOB,                       -- JSON of the last failure
    key         BLOB,                       -- jobs of one function and one key share limits; NULL: the empty key, as of most jobs
    stopping    BLOB,                       -- a request to cancel the held job: MessagePack of mainspring.jobs.model.StopRequest
    attempts    TEXT                        -- lines of JSON (mainspring.jobs.settlement_records); NULL: none, as of most jobs
) STRICT;

-- Root jobs, which stand for runs of workflows, are running under a negative term: no node holds, recovers or sweeps them. There may
-- be a million of them, so the indexes for these tasks leave them out.

-- Pending jobs in the order in which they are claimed (every index ends with the id), and held ones for recovery. Within a priority,
-- jobs without a key come first, in their order, and then those of one key after the other: a claim goes from key to key and passes
-- over the rest of each, however long that is. Where no job has a key, it is the order of ids.
CREATE INDEX queue ON jobs (state, function, priority, key) WHERE state BETWEEN 1 AND 3 AND term >= 0;
-- A live job of a function has its unique to itself: this is what makes a computation single.
CREATE UNIQUE INDEX live ON jobs (function, uniq) WHERE uniq IS NOT NULL AND state < 4;
CREATE INDEX kept ON jobs (function, uniq, ended_us) WHERE keep = 1 AND state = 4;
CREATE INDEX due ON jobs (due_us) WHERE state = 0;
-- A job that has been tried no longer expires: without `attempt = 0` here, it would be looked at for ever.
CREATE INDEX expiring ON jobs (expires_us) WHERE expires_us > 0 AND state < 2 AND attempt = 0;
-- Results and dead letters are kept for different times; in one index, each sweep would pass all dead letters.
CREATE INDEX succeeded ON jobs (ended_us) WHERE state = 4 AND term >= 0;
CREATE INDEX unsuccessful ON jobs (state, ended_us) WHERE state > 4 AND term >= 0;
-- Lists by state find root jobs here.
CREATE INDEX roots ON jobs (state, function) WHERE term < 0;

-- How many jobs there are, kept by deltas in every transaction. Held jobs are counted as leased (2).
CREATE TABLE counts (
    function INTEGER NOT NULL,
    state    INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    PRIMARY KEY (function, state, priority)
) STRICT, WITHOUT ROWID;

-- The tags of jobs. Most jobs have none, and no row here.
CREATE TABLE tags (
    namespace TEXT NOT NULL,
    tag       TEXT NOT NULL,
    job       INTEGER NOT NULL,
    PRIMARY KEY (namespace, tag, job)
) STRICT, WITHOUT ROWID;

CREATE INDEX tags_of_job ON tags (job);

-- Only jobs with options have tags. A job with the option `forget` has none, so no statement that counts its changes runs this.
CREATE TRIGGER untag AFTER DELETE ON jobs WHEN OLD.options IS NOT NULL BEGIN
    DELETE FROM tags WHERE job = OLD.id;
END;

-- What is said of a function's limits; `said` is MessagePack of mainspring.resources.rules.FunctionLimits.
CREATE TABLE limits (
    namespace TEXT NOT NULL,
    function  BLOB NOT NULL,
    version   INTEGER NOT NULL,
    said      BLOB NOT NULL,
    PRIMARY KEY (namespace, function)
) STRICT, WITHOUT ROWID;

-- Schedules: what users say of them and how they stand, as MessagePack of mainspring.schedules.model.
CREATE TABLE schedules (
    id       INTEGER PRIMARY KEY,
    name     TEXT NOT NULL UNIQUE,
    next_us  INTEGER,                       -- the next fire time, NULL where none comes
    queued   INTEGER NOT NULL,              -- rows of it that wait
    version  INTEGER NOT NULL,              -- changes are guarded by it
    schedule BLOB NOT NULL,
    state    BLOB NOT NULL
) STRICT;

CREATE INDEX schedules_due ON schedules (next_us, name) WHERE next_us IS NOT NULL;
CREATE INDEX schedules_queued ON schedules (name) WHERE queued > 0;

-- What became of each fire time. The primary key is what makes it single.
CREATE TABLE fires (
    schedule TEXT NOT NULL,
    fire_us  INTEGER NOT NULL,
    standing INTEGER NOT NULL,              -- as in mainspring.schedules.store.Standing
    job      INTEGER,
    fire     BLOB NOT NULL,                 -- MessagePack of mainspring.schedules.model.Fire
    PRIMARY KEY (schedule, fire_us)
) STRICT, WITHOUT ROWID;

CREATE INDEX fires_unfinished ON fires (schedule, fire_us) WHERE standing < 4;
CREATE INDEX fires_of_job ON fires (job) WHERE standing BETWEEN 1 AND 2;
CREATE INDEX fires_to_mend ON fires (standing) WHERE standing BETWEEN 2 AND 3;

-- Rows of `fires` are dropped in the end, the oldest of each schedule first: up to which fire time, by the schedule's name.
CREATE TABLE forgotten (
    schedule TEXT PRIMARY KEY,
    until_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

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

-- The versions of workflows that workers have registered.
CREATE TABLE definitions (
    namespace  TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    TEXT NOT NULL,
    definition BLOB NOT NULL,               -- MessagePack of mainspring.workflows.model.Definition
    PRIMARY KEY (namespace, name, version)
) STRICT, WITHOUT ROWID;

-- Runs of workflows, open and closed. Times are microseconds of wall time, NULL or 0 where there is none.
CREATE TABLE runs (
    id            INTEGER PRIMARY KEY,      -- a number among those of jobs; of the first run of a chain, that of the root job
    root          INTEGER NOT NULL,         -- the root job
    namespace     TEXT NOT NULL,
    workflow_id   TEXT NOT NULL,
    type          TEXT NOT NULL,
    version       TEXT NOT NULL,
    status        INTEGER NOT NULL,         -- mainspring.workflows.model.Status; 0 is open
    started_us    INTEGER NOT NULL,
    closed_us     INTEGER NOT NULL,
    events        INTEGER NOT NULL,         -- the number of the last event; it guards changes
    history_bytes INTEGER NOT NULL,
    input_size    INTEGER NOT NULL,
    output_size   INTEGER NOT NULL,
    due_us        INTEGER,                  -- the earliest timer or timeout
    about         BLOB,                     -- MessagePack of mainspring.workflows.model.About
    decision      INTEGER NOT NULL,         -- the job of the open decision task
    slot          INTEGER NOT NULL,
    parked_us     INTEGER,
    builds        TEXT NOT NULL,            -- the builds that could not make the next decision, one per line
    parking       BLOB                      -- MessagePack of mainspring.workflows.model.Parking
) STRICT;

-- A workflow id has one open run.
CREATE UNIQUE INDEX runs_open ON runs (namespace, workflow_id) WHERE status = 0;
CREATE INDEX runs_named ON runs (namespace, workflow_id, id) WHERE status > 0;
-- The runs that continue another one as new, by the root job of their chain. Most runs continue none, and are not in the index.
CREATE INDEX runs_links ON runs (root, id) WHERE id <> root;
-- Open runs by their versions, so that a version is removed only if no run needs it.
CREATE INDEX runs_versions ON runs (namespace, type, version) WHERE status = 0;
CREATE INDEX runs_due ON runs (due_us) WHERE due_us IS NOT NULL;
CREATE INDEX runs_parked ON runs (namespace, type, version, builds) WHERE parked_us IS NOT NULL;
CREATE INDEX runs_closed ON runs (namespace, closed_us) WHERE status > 0;

-- The events of runs: a row has those that one transaction has appended to one run, from the event `first` on.
CREATE TABLE history (
    run   INTEGER NOT NULL,
    first INTEGER NOT NULL,
    block BLOB NOT NULL,                    -- MessagePack array of events of mainspring.workflows.history
    PRIMARY KEY (run, first)
) STRICT, WITHOUT ROWID;

-- States of runs with long histories, so that only the events after them are read. They are apart from the runs, since a change
-- of a row writes all of it.
CREATE TABLE snapshots (
    run           INTEGER PRIMARY KEY,
    history_bytes INTEGER NOT NULL,         -- bytes of the history up to its last event
    state         BLOB NOT NULL             -- MessagePack of a number of the format and mainspring.workflows.model.State
) STRICT;

-- Signals to jobs whose runs have not begun, because no worker has registered their functions as workflows yet.
CREATE TABLE early_signals (
    job     INTEGER NOT NULL,
    number  INTEGER NOT NULL,               -- from 1 on, in the order of arrival
    bytes   INTEGER NOT NULL,               -- of this and the earlier signals of the job
    request INTEGER NOT NULL,               -- the hash that identifies the request, as a signed number; 0 if there is none
    name    TEXT NOT NULL,
    input   BLOB NOT NULL,
    PRIMARY KEY (job, number)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX early_requests ON early_signals (job, request) WHERE request <> 0;

-- Requests of runs of workflows to other runs that are not done yet: they are done in the order of their numbers.
CREATE TABLE errands (
    number INTEGER PRIMARY KEY,
    errand BLOB NOT NULL                    -- MessagePack of mainspring.workflows.cross_run.Errand
) STRICT;

-- Lines that tasks have logged, in chunks of up to 16 KiB, each with the lines of one delivery that came together.
CREATE TABLE logs (
    id          INTEGER PRIMARY KEY,        -- the time in microseconds, or the next free number: the sweep reads the table from its start
    job         INTEGER NOT NULL,
    namespace   TEXT    NOT NULL,
    function    BLOB    NOT NULL,
    attempt     INTEGER NOT NULL,
    delivery_us INTEGER NOT NULL,
    first       INTEGER NOT NULL,           -- the number of the first line
    lines       INTEGER NOT NULL,
    levels      INTEGER NOT NULL,           -- a bit for each level that occurs
    body        BLOB    NOT NULL            -- MessagePack of mainspring.job_logs.model.Line
) STRICT;
-- The row's id is part of every index, so a job's chunks are read in order.
CREATE INDEX logs_job ON logs (job);

-- What happened to the jobs of each function, by minute and by half hour, as each node counted it; a node writes once a minute.
CREATE TABLE series (
    namespace TEXT    NOT NULL,
    function  BLOB    NOT NULL,
    step      INTEGER NOT NULL,             -- seconds
    at        INTEGER NOT NULL,             -- the begin, in seconds since 1970
    term      INTEGER NOT NULL,
    bucket    BLOB    NOT NULL,             -- MessagePack of mainspring.series.Bucket
    PRIMARY KEY (namespace, function, step, at, term)
) STRICT, WITHOUT ROWID;
-- For the sweep.
CREATE INDEX series_old ON series (step, at);

-- Operations on many jobs. Their ids are ids of jobs' kind: the term of the node that accepted them, and a number.
CREATE TABLE operations (
    id         INTEGER PRIMARY KEY,
    namespace  TEXT NOT NULL,
    status     INTEGER NOT NULL,            -- 0 while it runs: mainspring.bulk.rules.Status
    term       INTEGER NOT NULL,            -- of the node that works on it
    revision   INTEGER NOT NULL,            -- incremented with each write
    created_us INTEGER NOT NULL,
    ended_us   INTEGER NOT NULL,
    spec       BLOB NOT NULL,               -- MessagePack of mainspring.bulk.rules.Spec
    progress   BLOB NOT NULL                -- MessagePack of mainspring.bulk.rules.Progress
) STRICT;
CREATE INDEX operations_of ON operations (namespace, id);
CREATE INDEX operations_running ON operations (id) WHERE status = 0;
CREATE INDEX operations_ended ON operations (ended_us) WHERE status > 0;

-- The jobs that the steps of operations have changed or have failed to change.
CREATE TABLE operation_steps (
    operation INTEGER NOT NULL,
    revision  INTEGER NOT NULL,             -- of the operation after the step
    jobs      BLOB NOT NULL,                -- MessagePack of mainspring.bulk.rules.Touched
    PRIMARY KEY (operation, revision)
) STRICT;

-- Tokens, sessions of browsers and sign-in links. A secret itself is never stored.
CREATE TABLE credentials (
    digest     BLOB PRIMARY KEY,            -- SHA-256 of the secret
    kind       TEXT NOT NULL,               -- mainspring.access.caller.Kind
    token      TEXT NOT NULL,               -- the token's id; of a session: its token's, or empty
    expires_us INTEGER NOT NULL,            -- 0: never
    used_us    INTEGER NOT NULL,
    data       BLOB NOT NULL                -- MessagePack of mainspring.access.store.Credential
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX credential_tokens ON credentials (token) WHERE kind = 'ms_';
CREATE INDEX credential_sessions ON credentials (token) WHERE kind = 'mss_';
CREATE INDEX credential_ends ON credentials (expires_us) WHERE kind <> 'ms_';

-- The number of revocations so far: one row.
CREATE TABLE revocations (number INTEGER NOT NULL) STRICT;
INSERT INTO revocations VALUES (0);

-- Who did what.
CREATE TABLE audit (
    number    INTEGER PRIMARY KEY,
    at_us     INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    what      TEXT NOT NULL,
    act       BLOB NOT NULL,                -- MessagePack of mainspring.access.audit.Act
    object    INTEGER                       -- the number of the act's object (mainspring.access.audit.object_number)
) STRICT;
CREATE INDEX audit_times ON audit (at_us);
CREATE INDEX audit_whats ON audit (what, number);
CREATE INDEX audit_namespaces ON audit (namespace, number);
CREATE INDEX audit_objects ON audit (object);

-- Answers to requests with a key of their client, so that a repeated request gets the same answer.
CREATE TABLE replies (
    key     BLOB PRIMARY KEY,               -- SHA-256 of the caller, the route and the client's key
    request BLOB NOT NULL,                  -- SHA-256 of the request
    at_us   INTEGER NOT NULL,
    reply   BLOB                            -- MessagePack of mainspring.access.idempotency.KeptReply; NULL: not answered
) STRICT, WITHOUT ROWID;
CREATE INDEX replies_old ON replies (at_us);
