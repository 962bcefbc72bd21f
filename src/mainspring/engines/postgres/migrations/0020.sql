-- compatible from: 7
-- NOTIFY has no rights: any role that may connect can send and receive on a channel whose name it knows. So the names of the nodes'
-- channels follow from a secret, and what is more than a hint waits for its receiver in a table (mainspring.engines.postgres.relay).
CREATE TABLE secrets (
    name  text  COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL
);
-- 244 random bits of the server's strong generator.
INSERT INTO secrets VALUES ('channels', decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'));

-- Messages to the nodes of terms. It is empty after a crash of the server: no guarantee depends on messages.
CREATE UNLOGGED TABLE mail (
    term   bigint NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    body   bytea  NOT NULL,                 -- MessagePack of mainspring.events.Message
    PRIMARY KEY (term, number)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE mail ALTER COLUMN body SET STORAGE EXTERNAL;
