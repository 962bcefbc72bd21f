-- The places of readers in the log of events.
ALTER TABLE interests ADD COLUMN since INTEGER NOT NULL DEFAULT 0;   -- a reader behind a lower number has missed events
ALTER TABLE interests ADD COLUMN place INTEGER NOT NULL DEFAULT 0;   -- of a cursor: the number of the last event that it has read
ALTER TABLE event_ends ADD COLUMN given INTEGER NOT NULL DEFAULT 0;  -- the highest number that was left out
