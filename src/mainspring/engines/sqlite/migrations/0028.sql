-- Completion tokens (mainspring.jobs.completion_rules): those of attempts that other systems complete.
CREATE TABLE completions (
    digest  BLOB PRIMARY KEY,                   -- SHA-256 of the token
    job     INTEGER NOT NULL,
    look_us INTEGER NOT NULL,                   -- when a node has to look at it
    version INTEGER NOT NULL,
    content BLOB NOT NULL                       -- MessagePack of mainspring.jobs.completion_rules.Completion
) STRICT, WITHOUT ROWID;
CREATE INDEX completions_of ON completions (job);
CREATE INDEX completions_due ON completions (look_us);
