-- compatible from: 22
-- The places of readers in the log of events.
ALTER TABLE interests
    ADD COLUMN since bigint NOT NULL DEFAULT 0,  -- a reader behind a lower number has missed events
    ADD COLUMN place bigint NOT NULL DEFAULT 0;  -- of a cursor: the number of the last event that it has read
