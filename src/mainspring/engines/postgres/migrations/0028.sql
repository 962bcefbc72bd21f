-- compatible from: 22
-- The series of dead letters of functions, for the event function.dead_letters; a row stays until the next series replaces it.
CREATE TABLE dead_letter_series (
    function bytea  PRIMARY KEY,                 -- its key (mainspring.namespaces)
    last_us  bigint NOT NULL,                    -- when the last of them failed
    number   bigint NOT NULL
) WITH (fillfactor = 50);
