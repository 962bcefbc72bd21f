-- compatible from: 7
-- Operations on many jobs. Their ids are ids of jobs' kind: the term of the node that accepted them, and a number.
CREATE TABLE operations (
    id         bigint   PRIMARY KEY,
    namespace  text     NOT NULL,
    status     smallint NOT NULL,   -- 0 while it runs: mainspring.bulk.rules.Status
    term       bigint   NOT NULL,   -- of the node that works on it
    revision   bigint   NOT NULL,   -- incremented with each write
    created_us bigint   NOT NULL,
    ended_us   bigint   NOT NULL,
    spec       bytea    NOT NULL,   -- MessagePack of mainspring.bulk.rules.Spec
    progress   bytea    NOT NULL    -- MessagePack of mainspring.bulk.rules.Progress
) WITH (fillfactor = 50);
CREATE INDEX operations_of ON operations (namespace, id);
CREATE INDEX operations_running ON operations (id) WHERE status = 0;
CREATE INDEX operations_ended ON operations (ended_us) WHERE status > 0;

-- The jobs that the steps of operations have changed or have failed to change.
CREATE TABLE operation_steps (
    operation bigint NOT NULL,
    revision  bigint NOT NULL,      -- of the operation after the step
    jobs      bytea  NOT NULL,      -- MessagePack of mainspring.bulk.rules.Touched
    PRIMARY KEY (operation, revision)
);
