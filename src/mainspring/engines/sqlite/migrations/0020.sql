-- Whether a term has ended: by the goodbye of its node, or because a later run of the node has found it open.
ALTER TABLE terms ADD COLUMN ended INTEGER NOT NULL DEFAULT 1;

-- The series of dead letters of functions, for the event function.dead_letters; a row stays until the next series replaces it.
CREATE TABLE dead_letter_series (
    function BLOB PRIMARY KEY,              -- its key (mainspring.namespaces)
    last_us  INTEGER NOT NULL,              -- when the last of them failed
    number   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
