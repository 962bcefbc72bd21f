-- Jobs of one function and one key share limits. NULL is the empty key, which most jobs have.
ALTER TABLE jobs ADD COLUMN key BLOB;

-- Within a priority, jobs without a key come first, in their order, and then those of one key after the other: a claim goes from
-- key to key and passes over the rest of each, however long that is. Where no job has a key, it is the order of ids as before.
DROP INDEX queue;
CREATE INDEX queue ON jobs (state, function, priority, key) WHERE state BETWEEN 1 AND 3;

-- What is said of a function's limits; `said` is MessagePack of mainspring.resources.rules.FunctionLimits.
CREATE TABLE limits (
    namespace TEXT NOT NULL,
    function  BLOB NOT NULL,
    version   INTEGER NOT NULL,
    said      BLOB NOT NULL,
    PRIMARY KEY (namespace, function)
) STRICT, WITHOUT ROWID;
