-- compatible from: 2
-- What is said of a function's limits; `said` is MessagePack of mainspring.resources.rules.FunctionLimits.
CREATE TABLE limits (
    function int    PRIMARY KEY,
    version  bigint NOT NULL,
    said     bytea  NOT NULL
);

-- What nodes have and want of the tokens of a pool: a function's own (empty), or those of one of its keys. The rows of terms that
-- have ended count for nothing.
CREATE TABLE tokens (
    function int    NOT NULL,
    pool     bytea  NOT NULL,
    term     bigint NOT NULL,
    number   int    NOT NULL,
    wanted   int    NOT NULL,
    asked_us bigint NOT NULL,
    PRIMARY KEY (function, pool, term)
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);

-- The starts that a pool has left, in parts of a token; see mainspring.resources.rules.Bucket.
CREATE TABLE buckets (
    function   int    NOT NULL,
    pool       bytea  NOT NULL,
    number     bigint NOT NULL,             -- the rate at which it was filled last
    per_us     bigint NOT NULL,
    burst      bigint NOT NULL,
    level      bigint NOT NULL,
    updated_us bigint NOT NULL,
    PRIMARY KEY (function, pool)
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
