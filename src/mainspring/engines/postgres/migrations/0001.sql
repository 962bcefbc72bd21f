-- compatible from: 1
-- What every group needs: names, terms, the journal and the counts. Times are microseconds of wall time, 0 where there is none.

-- One row per function name that was ever submitted; rows of jobs carry its number.
CREATE TABLE functions (
    id        int   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace text  NOT NULL,
    name      bytea NOT NULL
);
-- By a hash: a name may have 8 KiB, and an index entry 2,704 bytes at most.
CREATE UNIQUE INDEX functions_names ON functions (namespace, sha256(name));

-- One row per run of a node. Groups lock it FOR KEY SHARE, `end` locks it FOR UPDATE: nothing is committed behind the end.
CREATE TABLE terms (
    term       bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node       text    NOT NULL,
    ended      boolean NOT NULL DEFAULT false,
    last_group bigint  NOT NULL DEFAULT 0,      -- groups up to this one are folded into the counts
    gone       boolean NOT NULL DEFAULT false   -- ended, and nothing is left of it: no journal, no jobs, nobody who waits
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX terms_present ON terms (term) WHERE NOT gone;

-- The term of jobs that users' own transactions submit.
INSERT INTO terms (term, node, gone) OVERRIDING SYSTEM VALUE VALUES (0, 'inbox', true);

-- What the nodes say of themselves with each heartbeat. The row goes when its term ends.
CREATE TABLE nodes (
    term     bigint  PRIMARY KEY,
    counter  bigint  NOT NULL,
    about    json    NOT NULL,                  -- mainspring.nodes.model.NodeRow
    draining boolean NOT NULL DEFAULT false     -- somebody asked the node to drain
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- One row per group: the proof that it was committed, and what it changed in the counts. Nothing per group is ever updated.
CREATE TABLE journal (
    term       bigint     NOT NULL,
    number     bigint     NOT NULL,             -- of the group within its term
    functions  int[]      NOT NULL,
    states     smallint[] NOT NULL,
    priorities smallint[] NOT NULL,
    numbers    int[]      NOT NULL,
    PRIMARY KEY (term, number)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 1, autovacuum_vacuum_cost_delay = 0
);

-- How many jobs there are, without the groups that are not folded yet. Held jobs are counted as leased (2).
CREATE TABLE counts (
    function int      NOT NULL,
    state    smallint NOT NULL,
    priority smallint NOT NULL,
    number   bigint   NOT NULL,
    PRIMARY KEY (function, state, priority)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The first step of every group: MS001 where the term has ended, MS002 where this group has been committed.
CREATE FUNCTION enter(own bigint, this bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    found record;
BEGIN
    PERFORM FROM terms WHERE term = own AND NOT ended FOR KEY SHARE;
    -- In a snapshot of its own, behind the lock: nothing of this term was under way when it was taken, or can be any more.
    -- Both in one statement: between two, the group could be folded away.
    SELECT t.ended, t.last_group >= this OR EXISTS (SELECT FROM journal j WHERE j.term = own AND j.number = this) AS committed
    INTO found FROM terms t WHERE t.term = own;
    IF found.committed THEN
        RAISE 'group % of term % was committed', this, own USING ERRCODE = 'MS002';
    END IF;
    IF found.ended IS NOT false THEN
        RAISE 'term % was ended', own USING ERRCODE = 'MS001';
    END IF;
END
$$;
