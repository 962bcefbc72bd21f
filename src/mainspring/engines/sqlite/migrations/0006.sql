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

-- The versions of workflows that workers have registered.
CREATE TABLE definitions (
    namespace  TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    TEXT NOT NULL,
    definition BLOB NOT NULL,               -- MessagePack of mainspring.workflows.model.Definition
    PRIMARY KEY (namespace, name, version)
) STRICT, WITHOUT ROWID;
