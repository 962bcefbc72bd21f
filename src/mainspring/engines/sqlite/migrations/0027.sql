-- Instances of managed resources (mainspring.resources.instances).
CREATE TABLE instances (
    resource TEXT NOT NULL,
    name     TEXT NOT NULL,
    instance BLOB NOT NULL,                     -- MessagePack of mainspring.resources.instances.Instance
    PRIMARY KEY (resource, name)
) STRICT, WITHOUT ROWID;
