-- compatible from: 22
-- The event log. Nodes of earlier versions record no events.

-- The interests of listeners, webhooks and readers: an event is stored only if one of them includes it.
CREATE TABLE interests (
    id       text   PRIMARY KEY,
    until_us bigint NOT NULL,                    -- when it ends; 0: when it is removed
    interest bytea  NOT NULL                     -- MessagePack of mainspring.event_log.interests.Interest
);

-- Events as their transactions write them, in the order of the inserts. Transactions commit in another order: so the events get
-- their numbers afterwards, by one transaction at a time. A job's events are in order here, because each of their transactions has
-- waited for the lock on the job's row.
CREATE TABLE new_events (
    place     bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_us     bigint   NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    namespace text     NOT NULL,
    type      text     NOT NULL,                 -- mainspring.event_log.types
    function  text     NOT NULL,                 -- empty for none
    subject   text     NOT NULL,                 -- empty for a job
    job       bigint   NOT NULL,                 -- 0 for none
    fields    bytea    NOT NULL                  -- MessagePack
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE events (
    number    bigint   PRIMARY KEY,
    at_us     bigint   NOT NULL,
    namespace text     NOT NULL,
    type      text     NOT NULL,
    function  text     NOT NULL,
    subject   text     NOT NULL,
    job       bigint   NOT NULL,
    fields    bytea    NOT NULL
);
CREATE INDEX events_of_jobs ON events (job, number) WHERE job > 0;

-- One row. Whoever numbers events locks it first.
CREATE TABLE event_ends (
    last  bigint NOT NULL,                       -- the highest number
    swept bigint NOT NULL,                       -- the highest number that was deleted
    changes bigint NOT NULL                      -- the number of changes of interests
);
INSERT INTO event_ends VALUES (0, 0, 0);
