-- compatible from: 7
-- Lines that tasks have logged, in chunks of up to 16 KiB, each with the lines of one delivery that came together. (A node of the
-- version before writes none.)
CREATE TABLE logs (
    id          bigint   NOT NULL,          -- the time in microseconds, or the node's next free number: the sweep deletes the lowest ones
    job         bigint   NOT NULL,
    namespace   text     COLLATE "C" NOT NULL,
    function    bytea    NOT NULL,
    attempt     int      NOT NULL,
    delivery_us bigint   NOT NULL,
    first       bigint   NOT NULL,          -- the number of the first line
    lines       int      NOT NULL,
    levels      int      NOT NULL,          -- a bit for each level that occurs
    body        bytea    NOT NULL,          -- MessagePack of mainspring.job_logs.model.Line
    PRIMARY KEY (job, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX logs_id ON logs (id);
