-- Limits of open runs. The root jobs of a workflow are counted by their keys.
DROP INDEX roots;
CREATE INDEX roots ON jobs (state, function, key) WHERE term < 0;

-- The token buckets of the rates of workflows and functions (mainspring.resources.rules), so that a restart does not fill them. A full
-- bucket needs no row.
CREATE TABLE buckets (
    function   INTEGER NOT NULL,
    pool       BLOB    NOT NULL,                -- mainspring.resources.rules.pool_of
    number     INTEGER NOT NULL,                -- the rate at which it was filled last
    per_us     INTEGER NOT NULL,
    burst      INTEGER NOT NULL,
    level      INTEGER NOT NULL,
    updated_us INTEGER NOT NULL,
    PRIMARY KEY (function, pool)
) STRICT, WITHOUT ROWID;
