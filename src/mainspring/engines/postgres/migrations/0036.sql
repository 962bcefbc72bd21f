-- compatible from: 22
-- Completion tokens (mainspring.jobs.completion_rules): those of attempts that other systems complete. Nodes of earlier versions
-- see the job of one that is awaited as a job with a later due time.
CREATE TABLE completions (
    digest  bytea  PRIMARY KEY,                  -- SHA-256 of the token
    job     bigint NOT NULL,
    look_us bigint NOT NULL,                     -- when a node has to look at it
    version bigint NOT NULL,
    content bytea  NOT NULL                      -- MessagePack of mainspring.jobs.completion_rules.Completion
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX completions_of ON completions (job);
CREATE INDEX completions_due ON completions (look_us);
