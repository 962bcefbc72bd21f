-- The last published value of each name of a job or of a run, which has those of its root job (mainspring.values). Rows of jobs that
-- are deleted stay until the next sweep.
CREATE TABLE job_values (
    job     INTEGER NOT NULL,
    name    TEXT    NOT NULL,
    attempt INTEGER NOT NULL,
    number  INTEGER NOT NULL,                   -- of the change, among those of its job
    at_us   INTEGER NOT NULL,
    value   BLOB    NOT NULL,                   -- JSON
    PRIMARY KEY (job, name)
) STRICT, WITHOUT ROWID;
