-- Listeners and webhooks.
CREATE TABLE subscriptions (
    id         TEXT PRIMARY KEY,
    number     INTEGER NOT NULL,            -- the events up to this one are deliveries, or were not wanted
    version    INTEGER NOT NULL,
    failures   INTEGER NOT NULL,            -- deliveries that have failed for good since the last success
    definition BLOB NOT NULL                -- MessagePack of mainspring.subscriptions.model.Subscription
) STRICT, WITHOUT ROWID;

-- Deliveries of events about jobs: those that are jobs, and later ones about the same subject, which wait for them.
CREATE TABLE deliveries (
    subscription TEXT NOT NULL,
    subject      INTEGER NOT NULL,          -- the job that the event is about
    number       INTEGER NOT NULL,          -- of the event
    job          INTEGER NOT NULL,          -- 0: it waits
    depth        INTEGER NOT NULL,
    payload      BLOB NOT NULL,             -- empty if it is a job
    PRIMARY KEY (subscription, subject, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX deliveries_by_job ON deliveries (job) WHERE job > 0;
