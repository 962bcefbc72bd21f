-- Root jobs, which stand for runs of workflows, are running under a negative term: no node holds, recovers or sweeps them. There may
-- be a million of them, so the indexes for these tasks leave them out.
DROP INDEX queue;
CREATE INDEX queue ON jobs (state, function, priority, key) WHERE state BETWEEN 1 AND 3 AND term >= 0;
DROP INDEX succeeded;
CREATE INDEX succeeded ON jobs (ended_us) WHERE state = 4 AND term >= 0;
DROP INDEX unsuccessful;
CREATE INDEX unsuccessful ON jobs (state, ended_us) WHERE state > 4 AND term >= 0;
-- Lists by state find root jobs here.
CREATE INDEX roots ON jobs (state, function) WHERE term < 0;

-- A request to cancel a held job, as MessagePack of mainspring.jobs.model.StopRequest; NULL if there is none.
ALTER TABLE jobs ADD COLUMN stopping BLOB;
