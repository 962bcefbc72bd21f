-- The records of a job's attempts, as lines of JSON (mainspring.jobs.settlement_records); NULL if it has none, as most jobs.
-- The payload of a job that has succeeded is kept if it is small.
ALTER TABLE jobs ADD COLUMN attempts TEXT;
