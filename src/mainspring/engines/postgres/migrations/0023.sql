-- compatible from: 22
-- Root jobs of runs of workflows: live ones in `jobs` under the term -1, which no node has, and ended ones in `ended` and `dead`
-- under the same term, for as long as their runs are kept.

-- A request to cancel a held job: MessagePack of mainspring.jobs.model.StopRequest.
ALTER TABLE jobs ADD COLUMN stopping bytea;

-- Only partitions that are created from now on have these indexes: to build them in the others would stop the writes of nodes. The
-- few others are read once as a whole, when they are detached.
CREATE INDEX ended_roots ON ONLY ended (id) WHERE term < 0;
CREATE INDEX dead_roots ON ONLY dead (id) WHERE term < 0;

-- When a partition is detached, whatever version the node has: the root jobs in it get a partition for the same time.
CREATE FUNCTION keep_roots() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    day   CONSTANT text := right(NEW.name, 8);
    kind  CONSTANT text := left(NEW.name, -9);
    roots CONSTANT text := kind || '_roots_' || day;
    lower CONSTANT bigint := (to_date(day, 'YYYYMMDD') - date '1970-01-01') * 86400000000;
    found boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM %I WHERE term < 0)', NEW.name) INTO found;
    IF found THEN
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING STORAGE)', roots, kind);
        EXECUTE format('WITH moved AS (DELETE FROM %I WHERE term < 0 RETURNING *) INSERT INTO %I SELECT * FROM moved', NEW.name, roots);
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
            kind, roots, lower, lower + CASE kind WHEN 'dead' THEN 7 ELSE 1 END * 86400000000);
    END IF;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION keep_roots() FROM PUBLIC;

CREATE TRIGGER keep_roots AFTER INSERT ON retired FOR EACH ROW EXECUTE FUNCTION keep_roots();
