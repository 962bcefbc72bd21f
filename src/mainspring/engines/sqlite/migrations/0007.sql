-- Signals to jobs whose runs have not begun, because no worker has registered their functions as workflows yet.
CREATE TABLE early_signals (
    job     INTEGER NOT NULL,
    number  INTEGER NOT NULL,               -- from 1 on, in the order of arrival
    bytes   INTEGER NOT NULL,               -- of this and the earlier signals of the job
    request INTEGER NOT NULL,               -- the hash that identifies the request, as a signed number; 0 if there is none
    name    TEXT NOT NULL,
    input   BLOB NOT NULL,
    PRIMARY KEY (job, number)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX early_requests ON early_signals (job, request) WHERE request <> 0;
