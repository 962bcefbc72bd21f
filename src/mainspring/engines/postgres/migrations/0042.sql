-- compatible from: 22
-- Large payloads of events, apart from histories (mainspring.workflows.payloads). The first one that is stored excludes nodes of
-- earlier versions, which would take stubs for payloads. Rows are deleted with their run.
CREATE TABLE payloads (
    run   bigint NOT NULL,
    event bigint NOT NULL,
    data  bytea  NOT NULL,
    PRIMARY KEY (run, event)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
