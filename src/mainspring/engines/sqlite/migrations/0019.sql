-- The interests of listeners, webhooks and readers: an event is stored only if one of them includes it.
CREATE TABLE interests (
    id       TEXT PRIMARY KEY,
    until_us INTEGER NOT NULL,              -- when it ends; 0: when it is removed
    interest BLOB NOT NULL                  -- MessagePack of mainspring.event_log.interests.Interest
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    number    INTEGER PRIMARY KEY,
    at_us     INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    type      TEXT NOT NULL,                -- mainspring.event_log.types
    function  TEXT NOT NULL,                -- empty for none
    subject   TEXT NOT NULL,                -- empty for a job
    job       INTEGER NOT NULL,             -- 0 for none
    fields    BLOB NOT NULL                 -- MessagePack
) STRICT;
CREATE INDEX events_of_jobs ON events (job, number) WHERE job > 0;

-- One row.
CREATE TABLE event_ends (
    swept   INTEGER NOT NULL,               -- the highest number that was deleted
    changes INTEGER NOT NULL                -- the number of changes of interests
) STRICT;
INSERT INTO event_ends VALUES (0, 0);
