-- compatible from: 22
-- Streams of jobs and of runs, which have those of their root jobs (mainspring.streams): what each has, and its items in blocks. Nodes of
-- earlier versions write none. Rows of jobs that are deleted stay until the next sweep.
CREATE TABLE job_streams (
    job     bigint NOT NULL,
    name    text   COLLATE "C" NOT NULL,
    items   bigint NOT NULL,                     -- the number of the next item
    bytes   bigint NOT NULL,
    part    int    NOT NULL,                     -- writers so far
    writer  bigint NOT NULL,                     -- the last one
    seen    bigint NOT NULL,                     -- items that are stored of it
    refused bigint NOT NULL,
    at_us   bigint NOT NULL,
    PRIMARY KEY (job, name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);

CREATE TABLE stream_blocks (
    job     bigint NOT NULL,
    name    text   COLLATE "C" NOT NULL,
    first   bigint NOT NULL,                     -- the number of its first item
    length  int    NOT NULL,
    attempt int    NOT NULL,
    part    int    NOT NULL,                     -- the number of the writer
    at_us   bigint NOT NULL,
    items   bytea  NOT NULL,                     -- a JSON array
    PRIMARY KEY (job, name, first)
);
