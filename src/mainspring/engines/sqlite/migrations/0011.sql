-- Lines that tasks have logged, in chunks of up to 16 KiB, each with the lines of one delivery that came together.
CREATE TABLE logs (
    id          INTEGER PRIMARY KEY,        -- the time in microseconds, or the next free number: the sweep reads the table from its start
    job         INTEGER NOT NULL,
    namespace   TEXT    NOT NULL,
    function    BLOB    NOT NULL,
    attempt     INTEGER NOT NULL,
    delivery_us INTEGER NOT NULL,
    first       INTEGER NOT NULL,           -- the number of the first line
    lines       INTEGER NOT NULL,
    levels      INTEGER NOT NULL,           -- a bit for each level that occurs
    body        BLOB    NOT NULL            -- MessagePack of mainspring.job_logs.model.Line
) STRICT;
-- The row's id is part of every index, so a job's chunks are read in order.
CREATE INDEX logs_job ON logs (job);
