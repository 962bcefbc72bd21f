-- compatible from: 7
-- outside of a transaction
-- An interrupted attempt leaves an invalid index.
DROP INDEX CONCURRENTLY IF EXISTS audit_objects;
CREATE INDEX CONCURRENTLY audit_objects ON audit (object, number);
