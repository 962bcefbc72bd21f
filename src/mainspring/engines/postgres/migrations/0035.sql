-- compatible from: 22
-- Instances of managed resources (mainspring.resources.instances). Nodes of earlier versions grant nothing of such resources.
CREATE TABLE instances (
    resource text  COLLATE "C" NOT NULL,
    name     text  COLLATE "C" NOT NULL,
    instance bytea NOT NULL,                     -- MessagePack of mainspring.resources.instances.Instance
    PRIMARY KEY (resource, name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
