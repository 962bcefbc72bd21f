-- compatible from: 22
-- Jobs that wait for the end of the live job of their unique (mainspring.conflicts). They are rows of `jobs` under another unique.
-- Nodes of earlier versions neither write nor release them.
CREATE TABLE successors (
    job         bigint NOT NULL PRIMARY KEY,
    predecessor bigint NOT NULL,
    due_us      bigint NOT NULL,                 -- when it is to run at the earliest
    stops       smallint NOT NULL                -- 1: the predecessor is to be cancelled
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);

-- Gives a job that waits its unique; false if another live job has that, also one that is stored meanwhile.
CREATE FUNCTION release_successor(job bigint, name bytea, at_us bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE jobs SET uniq = name, due_us = at_us WHERE id = job AND state = 0;
    RETURN FOUND;
EXCEPTION WHEN unique_violation THEN
    RETURN false;
END
$$;
REVOKE ALL ON FUNCTION release_successor(bigint, bytea, bigint) FROM PUBLIC;
