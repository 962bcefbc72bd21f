-- compatible from: 7
-- What happened to the jobs of each function, by minute and by half hour, as each node counted it; a node writes once a minute. (A node
-- of the version before writes none.)
CREATE TABLE series (
    namespace text    COLLATE "C" NOT NULL,
    function  bytea   NOT NULL,
    step      int     NOT NULL,             -- seconds
    at        bigint  NOT NULL,             -- the begin, in seconds since 1970
    term      bigint  NOT NULL,
    bucket    bytea   NOT NULL,             -- MessagePack of mainspring.series.Bucket
    PRIMARY KEY (namespace, function, step, at, term)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
-- For the sweep.
CREATE INDEX series_old ON series (step, at);
