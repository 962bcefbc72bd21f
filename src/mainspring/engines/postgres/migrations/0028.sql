-- compatible from: 22
-- Causes of events that count as a series until they pause, such as dead letters of a function; mainspring.event_log.series.
CREATE TABLE event_series (
    key       bytea  PRIMARY KEY,
    last_us   bigint NOT NULL,                   -- the time of the last cause
    number    bigint NOT NULL,                   -- of causes
    before_us bigint NOT NULL                    -- the time of the last one before the latest transaction; 0 for none
) WITH (fillfactor = 50);
