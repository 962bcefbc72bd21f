-- compatible from: 2
-- Jobs of one function and one key share limits: `:` and the key; NULL where the job has none. Older nodes store jobs without it.
ALTER TABLE jobs ADD COLUMN key bytea;

-- A claim in turns of keys goes from key to key, and passes over the rest of each, however long that is.
CREATE INDEX queue_by_key ON jobs (function, priority, key, place) WHERE state = 1 AND key IS NOT NULL;
