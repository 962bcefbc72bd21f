-- Large payloads of events, apart from histories (mainspring.workflows.payloads). Rows are deleted with their run.
CREATE TABLE payloads (
    run   INTEGER NOT NULL,
    event INTEGER NOT NULL,
    data  BLOB    NOT NULL,
    PRIMARY KEY (run, event)
) STRICT;
