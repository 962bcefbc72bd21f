-- What happened to the jobs of each function, by minute and by half hour, as each node counted it; a node writes once a minute.
CREATE TABLE series (
    namespace TEXT    NOT NULL,
    function  BLOB    NOT NULL,
    step      INTEGER NOT NULL,             -- seconds
    at        INTEGER NOT NULL,             -- the begin, in seconds since 1970
    term      INTEGER NOT NULL,
    bucket    BLOB    NOT NULL,             -- MessagePack of mainspring.series.Bucket
    PRIMARY KEY (namespace, function, step, at, term)
) STRICT, WITHOUT ROWID;
-- For the sweep.
CREATE INDEX series_old ON series (step, at);
