-- compatible from: 7
-- Rows of `fires` are dropped in the end, the oldest of each schedule first: up to which fire time, by the schedule's name. (An older
-- node that added a schedule again would not look here.)
CREATE TABLE forgotten (
    schedule text   COLLATE "C" PRIMARY KEY,
    until_us bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
