-- The times by which jobs should have begun and ended, and by which schedules should have started a job. Only those that have one.
CREATE TABLE deadlines (
    job      INTEGER NOT NULL,              -- 0 for a schedule
    kind     INTEGER NOT NULL,              -- mainspring.jobs.lateness.Kind; 0 for a schedule
    schedule TEXT NOT NULL,                 -- empty for a job
    due_us   INTEGER NOT NULL,
    PRIMARY KEY (job, kind, schedule)
) STRICT, WITHOUT ROWID;
CREATE INDEX deadlines_due ON deadlines (due_us);
