-- compatible from: 7
-- The tags of jobs. Most jobs have none, and no row here. Rows of deleted jobs stay until a sweep comes to them.
CREATE TABLE tags (
    namespace  text   COLLATE "C" NOT NULL,
    tag        text   COLLATE "C" NOT NULL,
    job        bigint NOT NULL,
    created_us bigint NOT NULL,
    PRIMARY KEY (namespace, tag, job)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
