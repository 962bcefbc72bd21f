-- compatible from: 22
-- The last published value of each name of a job or of a run, which has those of its root job (mainspring.values). Nodes of earlier
-- versions write none. Rows of jobs that are deleted stay until the next sweep.
CREATE TABLE job_values (
    job     bigint NOT NULL,
    name    text   COLLATE "C" NOT NULL,
    attempt int    NOT NULL,
    number  bigint NOT NULL,                     -- of the change, among those of its job
    at_us   bigint NOT NULL,
    value   bytea  NOT NULL,                     -- JSON
    PRIMARY KEY (job, name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
