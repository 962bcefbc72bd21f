-- compatible from: 7
-- The number of an act's object (mainspring.access.audit.object_number). Acts of before have none, and those of nodes of the version
-- before.
ALTER TABLE audit ADD COLUMN object bigint;
