-- Operations on many jobs. Their ids are ids of jobs' kind: the term of the node that accepted them, and a number.
CREATE TABLE operations (
    id INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    status INTEGER NOT NULL,                -- 0 while it runs: mainspring.bulk.rules.Status
    term INTEGER NOT NULL,                  -- of the node that works on it
    revision INTEGER NOT NULL,              -- incremented with each write
    created_us INTEGER NOT NULL,
    ended_us INTEGER NOT NULL,
    spec BLOB NOT NULL,                     -- MessagePack of mainspring.bulk.rules.Spec
    progress BLOB NOT NULL                  -- MessagePack of mainspring.bulk.rules.Progress
) STRICT;
CREATE INDEX operations_of ON operations (namespace, id);
CREATE INDEX operations_running ON operations (id) WHERE status = 0;
CREATE INDEX operations_ended ON operations (ended_us) WHERE status > 0;

-- The jobs that the steps of operations have changed or have failed to change.
CREATE TABLE operation_steps (
    operation INTEGER NOT NULL,
    revision INTEGER NOT NULL,              -- of the operation after the step
    jobs BLOB NOT NULL,                     -- MessagePack of mainspring.bulk.rules.Touched
    PRIMARY KEY (operation, revision)
) STRICT;
