-- Streams of jobs and of runs, which have those of their root jobs (mainspring.streams): what each has, and its items in blocks. Rows of
-- jobs that are deleted stay until the next sweep.
CREATE TABLE job_streams (
    job     INTEGER NOT NULL,
    name    TEXT    NOT NULL,
    items   INTEGER NOT NULL,                   -- the number of the next item
    bytes   INTEGER NOT NULL,
    part    INTEGER NOT NULL,                   -- writers so far
    writer  INTEGER NOT NULL,                   -- the last one
    seen    INTEGER NOT NULL,                   -- items that are stored of it
    refused INTEGER NOT NULL,
    at_us   INTEGER NOT NULL,
    PRIMARY KEY (job, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE stream_blocks (
    job     INTEGER NOT NULL,
    name    TEXT    NOT NULL,
    first   INTEGER NOT NULL,                   -- the number of its first item
    length  INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    part    INTEGER NOT NULL,                   -- the number of the writer
    at_us   INTEGER NOT NULL,
    items   BLOB    NOT NULL,                   -- a JSON array
    PRIMARY KEY (job, name, first)
) STRICT;
