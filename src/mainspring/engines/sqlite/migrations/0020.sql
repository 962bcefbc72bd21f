-- Whether a term has ended: by the goodbye of its node, or because a later run of the node has found it open.
ALTER TABLE terms ADD COLUMN ended INTEGER NOT NULL DEFAULT 1;

-- Causes of events that count as a series until they pause, such as dead letters of a function; mainspring.event_log.series.
CREATE TABLE event_series (
    key       BLOB PRIMARY KEY,
    last_us   INTEGER NOT NULL,             -- the time of the last cause
    number    INTEGER NOT NULL,             -- of causes
    before_us INTEGER NOT NULL              -- the time of the last one before the latest transaction; 0 for none
) STRICT, WITHOUT ROWID;
