-- compatible from: 22
-- Root jobs are counted by their keys: the limits of open runs (mainspring.workflows.places). Runs without a key are not in the index.
CREATE INDEX roots_by_key ON jobs (function, key) WHERE term = -1 AND key IS NOT NULL;
