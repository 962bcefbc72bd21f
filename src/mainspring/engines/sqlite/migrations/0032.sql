-- Jobs that wait for the end of the live job of their unique (mainspring.conflicts). They are rows of `jobs` under another unique.
CREATE TABLE successors (
    job         INTEGER NOT NULL PRIMARY KEY,
    predecessor INTEGER NOT NULL,
    due_us      INTEGER NOT NULL,               -- when it is to run at the earliest
    stops       INTEGER NOT NULL                -- 1: the predecessor is to be cancelled
) STRICT;
