-- compatible from: 7
-- The inbox checks its rows itself, however they are inserted: a row that a node could not move on, or that would break a list later,
-- fails its user's statement. And a role may submit without any right on a table (mainspring.engines.postgres.migrate).

-- Rows that a node could not move all the same, with the reason. The newest 1,000 are kept, for the operator.
CREATE TABLE refused_submissions (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_us      bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    id         bigint NOT NULL,
    reason     text   NOT NULL,
    namespace  text   NOT NULL,
    function   bytea  NOT NULL,
    uniq       bytea,
    priority   smallint NOT NULL,
    created_us bigint NOT NULL,
    due_us     bigint NOT NULL,
    expires_us bigint NOT NULL,
    options    bytea,
    payload    bytea  NOT NULL
);

CREATE FUNCTION check_submission() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    now_us CONSTANT bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    latest CONSTANT bigint := now_us + 3162240000000000;  -- a century: mainspring.jobs.model.MAX_WAIT
    before bytea;
BEGIN
    IF NEW.namespace COLLATE "C" !~ '^[a-z0-9][a-z0-9_.-]{0,62}$' THEN
        RAISE invalid_parameter_value USING MESSAGE = format(
            'mainspring: %L is no namespace: use 1 to 63 of the characters a-z, 0-9, ''_'', ''.'' and ''-'', and begin with a letter'
            ' or a digit', left(NEW.namespace, 100));
    END IF;
    before := convert_to(NEW.namespace, 'UTF8') || '\x1f'::bytea;
    IF position('\x1f'::bytea IN CASE WHEN NEW.namespace <> 'default' AND substr(NEW.function, 1, length(before)) = before
            THEN substr(NEW.function, length(before) + 1) ELSE NEW.function END) > 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = format(
            'mainspring: the function''s name %s contains the character U+001F, which separates namespaces from names: leave it out',
            left(replace(encode(NEW.function, 'escape'), chr(31), '\x1f'), 100));
    ELSIF length(NEW.options) > 8192 THEN
        RAISE invalid_parameter_value USING MESSAGE =
            format('mainspring: the options have %s bytes, and a submission takes 8192', length(NEW.options));
    ELSIF length(NEW.payload) > 268435456 THEN
        RAISE invalid_parameter_value USING MESSAGE = format(
            'mainspring: the payload has %s bytes, and a submission takes 268435456: store larger data elsewhere, and submit its location',
            length(NEW.payload));
    ELSIF NEW.due_us NOT BETWEEN 0 AND latest OR NEW.expires_us NOT BETWEEN 0 AND latest THEN
        RAISE invalid_parameter_value USING MESSAGE =
            'mainspring: the job would start or expire before 1970 or more than a century from now: give another time';
    END IF;
    NEW.id := nextval('inbox_ids');  -- one that the user chooses could be that of another job
    NEW.created_us := least(greatest(NEW.created_us, 0), now_us);
    RETURN NEW;
END $$;

-- Only for roles that insert rows themselves: `submit_anywhere` inserts as the owner, and has checked the same.
DO $$
BEGIN
    EXECUTE format('CREATE TRIGGER check_submission BEFORE INSERT ON inbox FOR EACH ROW WHEN (current_user <> %L)'
        ' EXECUTE FUNCTION check_submission()', current_user);
END $$;

-- Submits in any namespace, with the rights of the store's owner. `submit` calls it, or the function of one namespace that calls it.
CREATE FUNCTION submit_anywhere(
    function bytea, payload bytea, uniq bytea, priority int, delay float8, run_at float8, expires float8, options bytea, namespace text
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
DECLARE
    now_us  bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    before  bytea := '';
    job_id  bigint;
BEGIN
    IF namespace IS NULL OR namespace COLLATE "C" !~ '^[a-z0-9][a-z0-9_.-]{0,62}$' THEN
        RAISE invalid_parameter_value USING MESSAGE = format(
            'mainspring: %L is no namespace: use 1 to 63 of the characters a-z, 0-9, ''_'', ''.'' and ''-'', and begin with a letter'
            ' or a digit', left(namespace, 100));
    ELSIF namespace <> 'default' THEN
        before := convert_to(namespace, 'UTF8') || '\x1f'::bytea;
    END IF;
    IF function IS NULL OR length(function) NOT BETWEEN 1 AND 8192 - length(before) THEN
        RAISE invalid_parameter_value USING MESSAGE = format(
            'mainspring: a function''s name has 1 to %s bytes in the namespace %s', 8192 - length(before), namespace);
    ELSIF position('\x1f'::bytea IN function) > 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = format(
            'mainspring: the function''s name %s contains the character U+001F, which separates namespaces from names: leave it out',
            left(replace(encode(function, 'escape'), chr(31), '\x1f'), 100));
    ELSIF length(uniq) > 64 THEN
        RAISE invalid_parameter_value USING MESSAGE =
            format('mainspring: a unique has up to 64 bytes, this one has %s', length(uniq));
    ELSIF delay < 0 OR expires < 0 OR (delay IS NOT NULL AND run_at IS NOT NULL) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'mainspring: give delay or run_at, and no negative times';
    ELSIF greatest(delay, expires, abs(run_at) - now_us / 1000000.0) > 3162240000 THEN  -- NaN is greater than any number
        RAISE invalid_parameter_value USING MESSAGE =
            'mainspring: delay, run_at or expires is more than a century away: give another time';
    ELSIF length(options) > 8192 THEN
        RAISE invalid_parameter_value USING MESSAGE =
            format('mainspring: the options have %s bytes, and a submission takes 8192', length(options));
    ELSIF length(payload) > 268435456 THEN
        RAISE invalid_parameter_value USING MESSAGE = format(
            'mainspring: the payload has %s bytes, and a submission takes 268435456: store larger data elsewhere, and submit its location',
            length(payload));
    END IF;
    INSERT INTO inbox (namespace, function, uniq, priority, created_us, due_us, expires_us, options, payload) VALUES (
        namespace, before || function, nullif(uniq, ''), coalesce(priority, 1), now_us,
        greatest(coalesce((run_at * 1000000)::bigint, now_us + (delay * 1000000)::bigint, 0), 0),
        coalesce(now_us + (expires * 1000000)::bigint, 0), options, coalesce(payload, '')
    ) RETURNING id INTO job_id;
    RETURN 'H:inbox:' || job_id;
END $$;

-- What users call. It runs with their own rights: what they may submit is decided by the function that they may execute. The function
-- of one namespace is made by `mainspring migrate --grant-submit`. Names have the schema: a path of its own would cost each call more.
DO $do$
BEGIN
    EXECUTE replace(replace(replace($create$
CREATE OR REPLACE FUNCTION submit(
    function bytea, payload bytea DEFAULT '', uniq bytea DEFAULT '', priority int DEFAULT 1, delay float8 DEFAULT NULL,
    run_at float8 DEFAULT NULL, expires float8 DEFAULT NULL, options bytea DEFAULT NULL, namespace text DEFAULT 'default'
) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    own    regprocedure;
    handle text;
BEGIN
    IF has_function_privilege(
        '{text}.submit_anywhere(bytea, bytea, bytea, int, float8, float8, float8, bytea, text)'::regprocedure, 'EXECUTE') THEN
        RETURN {at}.submit_anywhere(function, payload, uniq, priority, delay, run_at, expires, options, namespace);
    END IF;
    own := to_regprocedure(format('{format}.submit_%s(bytea, bytea, bytea, int, float8, float8, float8, bytea)',
        encode(substr(sha256(convert_to(namespace, 'UTF8')), 1, 16), 'hex')));
    IF own IS NULL OR NOT has_function_privilege(own, 'EXECUTE') THEN
        RAISE insufficient_privilege USING MESSAGE = format(
            'mainspring: the role %s may not submit in the namespace %s', current_user, left(namespace, 100)),
            HINT = 'The owner of the store grants it by: mainspring migrate --grant-submit ROLE --namespace NAMESPACE';
    END IF;
    EXECUTE format('SELECT %s($1, $2, $3, $4, $5, $6, $7, $8)', own::oid::regproc)
        INTO handle USING function, payload, uniq, priority, delay, run_at, expires, options;
    RETURN handle;
END $$
    $create$, '{at}', quote_ident(current_schema())), '{text}', replace(quote_ident(current_schema()), '''', '''''')),
    '{format}', replace(replace(quote_ident(current_schema()), '''', ''''''), '%', '%%'));
END $do$;

CREATE OR REPLACE FUNCTION submit_1(
    function bytea, payload bytea DEFAULT '', uniq bytea DEFAULT '', priority int DEFAULT 1, delay float8 DEFAULT NULL,
    run_at float8 DEFAULT NULL, expires float8 DEFAULT NULL, options bytea DEFAULT NULL
) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    RETURN submit(function, payload, uniq, priority, delay, run_at, expires, options, 'default');
END $$;

-- Every function that runs with the owner's rights has a path that nobody can put an object into: without
-- `pg_temp` at the end, a caller's temporary table would come first. And no function is anybody's: those who may use it by their
-- rights on the tables keep it.
DO $$
DECLARE
    this  CONSTANT name := current_schema();
    one   record;
    role  record;
BEGIN
    FOR one IN
        SELECT p.oid::regprocedure AS name, p.proname, p.proname LIKE 'submit%' AS submits,
            p.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(p.proacl) WHERE grantee = 0 AND privilege_type = 'EXECUTE') AS free
        FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = this
    LOOP
        IF one.proname = 'submit' THEN
            EXECUTE format('ALTER FUNCTION %s RESET ALL', one.name);
        ELSIF one.submits OR one.proname = 'check_submission' THEN
            EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', one.name, this);
        END IF;
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', one.name);
        CONTINUE WHEN NOT one.free OR one.proname = 'check_submission';
        FOR role IN
            SELECT DISTINCT grantee FROM (
                SELECT c.oid, c.relowner, x.grantee, x.privilege_type FROM pg_class c, aclexplode(c.relacl) AS x
                UNION ALL
                SELECT c.oid, c.relowner, x.grantee, x.privilege_type
                FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid, aclexplode(a.attacl) AS x
            ) AS granted
            WHERE grantee <> relowner AND CASE WHEN one.submits
                THEN oid = 'inbox'::regclass AND privilege_type = 'INSERT'
                ELSE oid = 'jobs'::regclass AND privilege_type = 'DELETE' END
        LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', one.name,
                CASE role.grantee WHEN 0 THEN 'PUBLIC' ELSE role.grantee::regrole::text END);
        END LOOP;
    END LOOP;
END $$;
