-- compatible from: 22
-- Listeners and webhooks. Nodes of earlier versions make no deliveries, and those that they end are repaired.
CREATE TABLE subscriptions (
    id         text   PRIMARY KEY,
    number     bigint NOT NULL,                  -- the events up to this one are deliveries, or were not wanted
    version    bigint NOT NULL,
    failures   bigint NOT NULL,                  -- deliveries that have failed for good since the last success
    definition bytea  NOT NULL                   -- MessagePack of mainspring.subscriptions.model.Subscription
) WITH (fillfactor = 50);

-- Deliveries of events about jobs: those that are jobs, and later ones about the same subject, which wait for them.
CREATE TABLE deliveries (
    subscription text   NOT NULL,
    subject      bigint NOT NULL,                -- the job that the event is about
    number       bigint NOT NULL,                -- of the event
    job          bigint NOT NULL,                -- 0: it waits
    depth        bigint NOT NULL,
    payload      bytea  NOT NULL,                -- empty if it is a job
    PRIMARY KEY (subscription, subject, number)
);
CREATE INDEX deliveries_by_job ON deliveries (job) WHERE job > 0;
