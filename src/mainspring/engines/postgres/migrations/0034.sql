-- compatible from: 22
-- Submissions of work that runs elsewhere (mainspring.external.store). Earlier versions run no jobs of such functions.
CREATE TABLE works (
    job       bigint   NOT NULL,
    number    int      NOT NULL,
    function  bytea    NOT NULL,
    status    smallint NOT NULL,                  -- mainspring.external.store.Status
    key       text     NOT NULL,
    meta      text     NOT NULL,                  -- JSON; empty before the other system has answered
    payload   bytea    NOT NULL,
    attempt   int      NOT NULL,
    since_us  bigint   NOT NULL,
    canceller bigint   NOT NULL,
    ended_us  bigint   NOT NULL,
    PRIMARY KEY (job, number)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX works_under_way ON works (status);
