-- compatible from: 7
-- Locks of objects that have rights, in place of advisory locks: any role that may connect can take an advisory lock, and pg_locks
-- shows it the numbers of those that are held. While nodes of the version before are there, the others take both.

-- Whether a node of the version before wrote the row.
ALTER TABLE nodes ADD COLUMN old boolean GENERATED ALWAYS AS (coalesce(about ->> 'mail', '') <> 'true') STORED;

-- Rows that transactions lock: 0 to 255 for pools of tokens, by a hash of their names; -1 to fold the journal; -2 to repair schedules.
CREATE TABLE locks (number int PRIMARY KEY);
INSERT INTO locks SELECT generate_series(-2, 255);

-- Groups that rely on the specifications of schedules lock it in ROW SHARE MODE, those that change them in EXCLUSIVE MODE.
CREATE TABLE schedules_lock ();

-- Groups take turns in pools of tokens, in an order that prevents deadlocks.
CREATE FUNCTION lock_pools(functions int[], pools bytea[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM locks WHERE number = ANY (ARRAY(
        SELECT (hashtextextended(format('%s:%s', asked.function, encode(asked.pool, 'hex')), 0) & 255)::int
        FROM unnest(functions, pools) AS asked (function, pool))) ORDER BY number FOR UPDATE;
    IF EXISTS (SELECT FROM nodes WHERE old) THEN
        PERFORM pg_advisory_xact_lock(
            hashtextextended(format('%s:%s:%s', current_schema(), asked.function, encode(asked.pool, 'hex')), 0))
        FROM (SELECT DISTINCT function, pool FROM unnest(functions, pools) AS one (function, pool) ORDER BY 1, 2) AS asked;
    END IF;
END
$$;

-- As `enter_schedules`, which nodes of the version before call.
CREATE FUNCTION enter_schedules_2(alone boolean) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    lock CONSTANT bigint := hashtextextended(current_schema() || ' schedules', 0);
BEGIN
    IF alone THEN
        LOCK TABLE schedules_lock IN EXCLUSIVE MODE;
    ELSE
        LOCK TABLE schedules_lock IN ROW SHARE MODE;
    END IF;
    IF EXISTS (SELECT FROM nodes WHERE old) THEN
        IF alone THEN
            PERFORM pg_advisory_xact_lock(lock);
        ELSE
            PERFORM pg_advisory_xact_lock_shared(lock);
        END IF;
    END IF;
    PERFORM set_config('lock_timeout', '300ms', true);
    RETURN (SELECT version FROM catalogue);
END
$$;

-- Whether this transaction has its turn at work that one node does at a time (a number of `locks`), without waiting.
CREATE FUNCTION has_turn(turn int, checksum int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM locks WHERE number = turn FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF NOT EXISTS (SELECT FROM nodes WHERE old) THEN
        RETURN true;
    ELSIF turn = -1 THEN
        RETURN pg_try_advisory_xact_lock(checksum, 0);
    END IF;
    RETURN pg_try_advisory_xact_lock(hashtextextended(current_schema() || ' mending', 0));
END
$$;

DO $$
DECLARE
    call record;
    role record;
BEGIN
    FOR call IN SELECT p.oid::regprocedure AS name FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = current_schema() AND p.proname IN ('lock_pools', 'enter_schedules_2', 'has_turn')
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', call.name);
        FOR role IN SELECT DISTINCT x.grantee FROM pg_class c, aclexplode(c.relacl) AS x
            WHERE c.oid = 'jobs'::regclass AND x.privilege_type = 'DELETE' AND x.grantee <> c.relowner
        LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', call.name,
                CASE role.grantee WHEN 0 THEN 'PUBLIC' ELSE role.grantee::regrole::text END);
        END LOOP;
    END LOOP;
END $$;
