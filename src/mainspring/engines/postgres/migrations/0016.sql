-- compatible from: 7
-- `submit` with a namespace. Whatever refers to the function of before, such as a view, goes on with it under its new name.
ALTER FUNCTION submit(bytea, bytea, bytea, int, float8, float8, float8, bytea) RENAME TO submit_1;

-- What users call in their own transactions, as in migration 2; `namespace` is that of the job. In other namespaces than
-- `default`, the inbox has the function's whole key (mainspring.namespaces), so that nodes of the version before, which ignore the
-- namespace, store the same job.
CREATE FUNCTION submit(
    function bytea, payload bytea DEFAULT '', uniq bytea DEFAULT '', priority int DEFAULT 1, delay float8 DEFAULT NULL,
    run_at float8 DEFAULT NULL, expires float8 DEFAULT NULL, options bytea DEFAULT NULL, namespace text DEFAULT 'default'
) RETURNS text LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    now_us  bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    before  bytea := '';
    job_id  bigint;
BEGIN
    IF namespace IS NULL OR namespace COLLATE "C" !~ '^[a-z0-9][a-z0-9_.-]{0,62}$' THEN
        RAISE invalid_parameter_value USING MESSAGE = format(
            'mainspring: %L is no namespace: use 1 to 63 of the characters a-z, 0-9, ''_'', ''.'' and ''-'', and begin with a letter'
            ' or a digit', namespace);
    ELSIF namespace <> 'default' THEN
        before := convert_to(namespace, 'UTF8') || '\x1f'::bytea;
    END IF;
    IF function IS NULL OR length(function) NOT BETWEEN 1 AND 8192 - length(before) THEN
        RAISE invalid_parameter_value USING MESSAGE = format(
            'mainspring: a function''s name has 1 to %s bytes in the namespace %s', 8192 - length(before), namespace);
    ELSIF position('\x1f'::bytea IN function) > 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = format(
            'mainspring: the function''s name %s contains the character U+001F, which separates namespaces from names: leave it out',
            replace(encode(function, 'escape'), chr(31), '\x1f'));
    ELSIF length(uniq) > 64 THEN
        RAISE invalid_parameter_value USING MESSAGE =
            format('mainspring: a unique has up to 64 bytes, this one has %s', length(uniq));
    ELSIF delay < 0 OR expires < 0 OR (delay IS NOT NULL AND run_at IS NOT NULL) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'mainspring: give delay or run_at, and no negative times';
    END IF;
    INSERT INTO inbox (namespace, function, uniq, priority, created_us, due_us, expires_us, options, payload) VALUES (
        namespace, before || function, nullif(uniq, ''), coalesce(priority, 1), now_us,
        greatest(coalesce((run_at * 1000000)::bigint, now_us + (delay * 1000000)::bigint, 0), 0),
        coalesce(now_us + (expires * 1000000)::bigint, 0), options, coalesce(payload, '')
    ) RETURNING id INTO job_id;
    RETURN 'H:inbox:' || job_id;
END $$;

-- The new function has the rights of the old one.
DO $$
DECLARE
    rights aclitem[] := (SELECT proacl FROM pg_proc
        WHERE oid = 'submit_1(bytea, bytea, bytea, int, float8, float8, float8, bytea)'::regprocedure);
    entry  record;
BEGIN
    IF rights IS NULL THEN
        RETURN;
    END IF;
    REVOKE ALL ON FUNCTION submit(bytea, bytea, bytea, int, float8, float8, float8, bytea, text) FROM PUBLIC;
    FOR entry IN SELECT grantee, is_grantable FROM aclexplode(rights) WHERE privilege_type = 'EXECUTE' LOOP
        EXECUTE format(
            'GRANT EXECUTE ON FUNCTION submit(bytea, bytea, bytea, int, float8, float8, float8, bytea, text) TO %s%s',
            CASE entry.grantee WHEN 0 THEN 'PUBLIC' ELSE entry.grantee::regrole::text END,
            CASE WHEN entry.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
    END LOOP;
END $$;
