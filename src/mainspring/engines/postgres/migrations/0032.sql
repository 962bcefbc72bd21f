-- compatible from: 22
-- Resources that jobs share (mainspring.resources.hold_store). Nodes of earlier versions pause functions that use some. Rows of
-- holders that are none any more stay until the next decision.
CREATE TABLE resources (
    name       text   COLLATE "C" PRIMARY KEY,
    version    bigint NOT NULL,
    definition bytea  NOT NULL                   -- MessagePack of mainspring.resources.definition_store.StoredResource
) WITH (fillfactor = 50);

-- A decision locks the rows that the hashes of its resources name, in their order.
CREATE TABLE resource_locks (number int PRIMARY KEY);
INSERT INTO resource_locks SELECT generate_series(0, 63);

-- How often slots of a resource were granted: the fencing number of its last hold.
CREATE TABLE grants (
    resource text   COLLATE "C" PRIMARY KEY,
    number   bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE holds (
    resource text     COLLATE "C" NOT NULL,
    item     text     COLLATE "C" NOT NULL,
    kind     smallint NOT NULL,                  -- mainspring.resources.holds.HolderKind
    holder   bigint   NOT NULL,
    term     bigint   NOT NULL,
    turn     bigint   NOT NULL,
    units    bigint   NOT NULL,
    number   bigint   NOT NULL,
    since_us bigint   NOT NULL,
    until_us bigint   NOT NULL,
    PRIMARY KEY (resource, item, kind, holder, term)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX holds_of ON holds (holder);

-- One row for each resource of a request.
CREATE TABLE requests (
    resource text     COLLATE "C" NOT NULL,
    kind     smallint NOT NULL,
    holder   bigint   NOT NULL,
    term     bigint   NOT NULL,
    turn     bigint   NOT NULL,
    priority smallint NOT NULL,
    since_us bigint   NOT NULL,
    until_us bigint   NOT NULL,
    function bytea    NOT NULL,                  -- empty if it is of a person
    lines    bytea    NOT NULL,                  -- MessagePack of mainspring.resources.holds.Line
    PRIMARY KEY (resource, kind, holder, term)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX requests_of ON requests (holder);
