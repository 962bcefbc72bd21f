-- Resources that jobs share (mainspring.resources.hold_store). Rows of holders that are none any more stay until the next decision.
CREATE TABLE resources (
    name       TEXT PRIMARY KEY,
    version    INTEGER NOT NULL,
    definition BLOB NOT NULL                    -- MessagePack of mainspring.resources.definition_store.StoredResource
) STRICT, WITHOUT ROWID;

-- How often slots of a resource were granted: the fencing number of its last hold.
CREATE TABLE grants (
    resource TEXT PRIMARY KEY,
    number   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE holds (
    resource TEXT NOT NULL,
    item     TEXT NOT NULL,
    kind     INTEGER NOT NULL,                  -- mainspring.resources.holds.HolderKind
    holder   INTEGER NOT NULL,
    term     INTEGER NOT NULL,
    turn     INTEGER NOT NULL,
    units    INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    since_us INTEGER NOT NULL,
    until_us INTEGER NOT NULL,
    PRIMARY KEY (resource, item, kind, holder, term)
) STRICT, WITHOUT ROWID;
CREATE INDEX holds_of ON holds (holder);

-- One row for each resource of a request.
CREATE TABLE requests (
    resource TEXT NOT NULL,
    kind     INTEGER NOT NULL,
    holder   INTEGER NOT NULL,
    term     INTEGER NOT NULL,
    turn     INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    since_us INTEGER NOT NULL,
    until_us INTEGER NOT NULL,
    function BLOB NOT NULL,                     -- empty if it is of a person
    lines    BLOB NOT NULL,                     -- MessagePack of mainspring.resources.holds.Line
    PRIMARY KEY (resource, kind, holder, term)
) STRICT, WITHOUT ROWID;
CREATE INDEX requests_of ON requests (holder);
