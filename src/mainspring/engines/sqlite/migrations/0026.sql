-- Submissions of work that runs elsewhere (mainspring.external.store). Earlier versions run no jobs of such functions.
CREATE TABLE works (
    job       INTEGER NOT NULL,
    number    INTEGER NOT NULL,
    function  BLOB NOT NULL,
    status    INTEGER NOT NULL,                  -- mainspring.external.store.Status
    key       TEXT NOT NULL,
    meta      TEXT NOT NULL,                     -- JSON; empty before the other system has answered
    payload   BLOB NOT NULL,
    attempt   INTEGER NOT NULL,
    since_us  INTEGER NOT NULL,
    canceller INTEGER NOT NULL,
    ended_us  INTEGER NOT NULL,
    PRIMARY KEY (job, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX works_under_way ON works (status);
