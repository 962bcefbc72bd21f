-- compatible from: 22
-- Workflows: the versions that workers have registered, runs with their histories, snapshots and errands, and early signals.

CREATE TABLE definitions (
    namespace  text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    version    text COLLATE "C" NOT NULL,
    definition bytea            NOT NULL,        -- MessagePack of mainspring.workflows.model.Definition
    PRIMARY KEY (namespace, name, version)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Open runs, and closed ones by days of their close. Times are microseconds of wall time, NULL or 0 where there is none.
CREATE TABLE runs (
    id            bigint   NOT NULL,             -- a number among those of jobs; of the first run of a chain, that of the root job
    root          bigint   NOT NULL,             -- the root job
    started_us    bigint   NOT NULL,
    closed_us     bigint   NOT NULL,             -- 0 while it is open
    events        bigint   NOT NULL,             -- the number of the last event; it guards changes
    history_bytes bigint   NOT NULL,
    input_size    bigint   NOT NULL,
    output_size   bigint   NOT NULL,
    decision      bigint   NOT NULL,             -- the job of the open decision task
    slot          bigint   NOT NULL,
    due_us        bigint,                        -- the earliest timer or timeout
    parked_us     bigint,
    status        smallint NOT NULL,             -- mainspring.workflows.model.Status; 0 is open
    namespace     text COLLATE "C" NOT NULL,
    workflow_id   text COLLATE "C" NOT NULL,
    type          text COLLATE "C" NOT NULL,
    version       text COLLATE "C" NOT NULL,
    builds        text COLLATE "C" NOT NULL,     -- the builds that could not make the next decision, one per line
    about         bytea,                         -- MessagePack of mainspring.workflows.model.About
    parking       bytea,                         -- MessagePack of mainspring.workflows.model.Parking
    PRIMARY KEY (id, closed_us)
) PARTITION BY RANGE (closed_us);

CREATE INDEX runs_named ON runs (namespace, workflow_id, closed_us) WHERE status > 0;
-- The last runs of chains, by their root jobs: those that no other run continues. Most runs continue none, and are not in the index.
CREATE INDEX runs_links ON runs (root) WHERE id <> root AND status <> 5;
-- A planner that knows no rows yet must not take it for a workflow id: such queries do not have the first condition.
CREATE INDEX runs_closed ON runs (namespace, closed_us, id) WHERE closed_us > 0;

-- Most changes of an open run touch no column that has an index, and find room on its page.
CREATE TABLE runs_open PARTITION OF runs FOR VALUES FROM (0) TO (1) WITH (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 1, autovacuum_analyze_scale_factor = 1
);
-- A workflow id has one open run.
CREATE UNIQUE INDEX runs_open_named ON runs_open (namespace, workflow_id) WHERE status = 0;
-- Open runs by their versions, so that a version is removed only if no run needs it.
CREATE INDEX runs_open_versions ON runs_open (namespace, type, version) WHERE closed_us = 0 AND status = 0;
CREATE INDEX runs_open_due ON runs_open (due_us, id) WHERE due_us IS NOT NULL;
CREATE INDEX runs_open_parked ON runs_open (namespace, type, version, builds) WHERE parked_us IS NOT NULL;

CREATE TABLE runs_other PARTITION OF runs DEFAULT;

-- The events of runs: a row has those that one transaction has appended to one run, from the event `first` on. Partitions have the
-- days of writing. The lock of the run makes `first` unique in it.
CREATE TABLE history (
    run        bigint NOT NULL,
    first      bigint NOT NULL,
    written_us bigint NOT NULL,
    block      bytea  NOT NULL                   -- MessagePack array of events of mainspring.workflows.history
) PARTITION BY RANGE (written_us);

CREATE INDEX history_of ON history (run, first);
-- Blocks that were kept when the partition of their time was dropped: their time is 0.
CREATE TABLE history_kept PARTITION OF history FOR VALUES FROM (0) TO (1);
CREATE TABLE history_other PARTITION OF history DEFAULT;

-- States of runs with long histories, so that only the events after them are read.
CREATE TABLE snapshots (
    run           bigint PRIMARY KEY,
    history_bytes bigint NOT NULL,               -- bytes of the history up to its last event
    state         bytea  NOT NULL                -- MessagePack of a number of the format and mainspring.workflows.model.State
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE snapshots ALTER COLUMN state SET STORAGE EXTERNAL;

-- Signals to jobs whose runs have not begun, because no worker has registered their functions as workflows yet.
CREATE TABLE early_signals (
    job     bigint NOT NULL,
    number  bigint NOT NULL,                     -- from 1 on, in the order of arrival
    bytes   bigint NOT NULL,                     -- of this and the earlier signals of the job
    request bigint NOT NULL,                     -- the hash that identifies the request, as a signed number; 0 if there is none
    name    text   NOT NULL,
    input   bytea  NOT NULL,
    PRIMARY KEY (job, number)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE UNIQUE INDEX early_requests ON early_signals (job, request) WHERE request <> 0;

-- Requests of runs of workflows to other runs that are not done yet: they are done in the order of their numbers.
CREATE TABLE errands (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    errand bytea NOT NULL                        -- MessagePack of mainspring.workflows.cross_run.Errand
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Nodes of schema 22 and 23 would run activities and lose their ends. They may share the store until the first workflow is
-- registered (`admits_runs`). From then on they are refused: at their start, because the schema needs version 24, and here if they
-- run already and begin another term.
CREATE FUNCTION refuse_older_nodes() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    needed int;
BEGIN
    SELECT compatible_from INTO needed FROM migrations WHERE number = 24 FOR SHARE;
    IF needed >= 24 THEN
        RAISE EXCEPTION 'the store has workflows, which this version of the node does not know: install the version of the other nodes';
    END IF;
    RETURN NEW;
END
$$;
REVOKE ALL ON FUNCTION refuse_older_nodes() FROM PUBLIC;

CREATE TRIGGER refuse_older_nodes BEFORE INSERT ON nodes
FOR EACH ROW WHEN (NEW.about ->> 'runs' IS DISTINCT FROM 'true') EXECUTE FUNCTION refuse_older_nodes();

-- -3: one node at a time does errands. -4: to save and remove definitions. -5: to forget runs, and to keep blocks of others.
INSERT INTO locks VALUES (-3), (-4), (-5);
