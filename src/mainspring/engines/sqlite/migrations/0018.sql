-- The number of an act's object (mainspring.access.audit.object_number). Acts of before have none.
ALTER TABLE audit ADD COLUMN object INTEGER;
CREATE INDEX audit_objects ON audit (object);
