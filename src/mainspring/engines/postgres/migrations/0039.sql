-- compatible from: 22
-- outside of a transaction
-- Root jobs are counted by their keys: the limits of open runs (mainspring.workflows.places). Runs without a key are not in the index.
DROP INDEX CONCURRENTLY IF EXISTS roots_by_key;
CREATE INDEX CONCURRENTLY roots_by_key ON jobs (function, key) WHERE term = -1 AND key IS NOT NULL;
