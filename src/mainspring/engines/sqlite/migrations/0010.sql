-- Requests of runs of workflows to other runs that are not done yet: they are done in the order of their numbers.
CREATE TABLE errands (
    number INTEGER PRIMARY KEY,
    errand BLOB NOT NULL                    -- MessagePack of mainspring.workflows.cross_run.Errand
) STRICT;
