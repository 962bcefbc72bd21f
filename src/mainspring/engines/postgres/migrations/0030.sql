-- compatible from: 22
-- Deadlines. Nodes of earlier versions start jobs without them, and leave these rows to others.

-- The times by which jobs should have begun and ended, and by which schedules should have started a job. Only those that have one.
CREATE TABLE deadlines (
    job      bigint   NOT NULL,                  -- 0 for a schedule
    kind     smallint NOT NULL,                  -- mainspring.jobs.lateness.Kind; 0 for a schedule
    schedule text     NOT NULL,                  -- empty for a job
    due_us   bigint   NOT NULL,
    PRIMARY KEY (job, kind, schedule)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX deadlines_due ON deadlines (due_us, job, kind, schedule);
