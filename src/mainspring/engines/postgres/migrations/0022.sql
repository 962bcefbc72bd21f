-- compatible from: 7
-- `submit_anywhere` checks its arguments in one expression, and the pattern of a namespace only if it is another one than `default`:
-- each statement of PL/pgSQL takes time, and so did the pattern.
DO $do$
BEGIN
    EXECUTE replace($create$
CREATE OR REPLACE FUNCTION submit_anywhere(
    function bytea, payload bytea, uniq bytea, priority int, delay float8, run_at float8, expires float8, options bytea, namespace text
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, {schema}, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now_us  bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    before  bytea := CASE WHEN namespace = 'default' THEN '' ELSE convert_to(namespace, 'UTF8') || '\x1f'::bytea END;
    fault   text;
    job_id  bigint;
BEGIN
    fault := CASE
        WHEN namespace IS NULL OR (namespace <> 'default' AND namespace COLLATE "C" !~ '^[a-z0-9][a-z0-9_.-]{0,62}$') THEN format(
            '%L is no namespace: use 1 to 63 of the characters a-z, 0-9, ''_'', ''.'' and ''-'', and begin with a letter or a digit',
            left(namespace, 100))
        WHEN function IS NULL OR length(function) NOT BETWEEN 1 AND 8192 - length(before) THEN
            format('a function''s name has 1 to %s bytes in the namespace %s', 8192 - length(before), namespace)
        WHEN position('\x1f'::bytea IN function) > 0 THEN format(
            'the function''s name %s contains the character U+001F, which separates namespaces from names: leave it out',
            left(replace(encode(function, 'escape'), chr(31), '\x1f'), 100))
        WHEN length(uniq) > 64 THEN format('a unique has up to 64 bytes, this one has %s', length(uniq))
        WHEN delay < 0 OR expires < 0 OR (delay IS NOT NULL AND run_at IS NOT NULL) THEN
            'give delay or run_at, and no negative times'
        WHEN greatest(delay, expires, abs(run_at) - now_us / 1000000.0) > 3162240000 THEN  -- NaN is greater than any number
            'delay, run_at or expires is more than a century away: give another time'
        WHEN length(options) > 8192 THEN format('the options have %s bytes, and a submission takes 8192', length(options))
        WHEN length(payload) > 268435456 THEN format(
            'the payload has %s bytes, and a submission takes 268435456: store larger data elsewhere, and submit its location',
            length(payload))
    END;
    IF fault IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'mainspring: ' || fault;
    END IF;
    INSERT INTO inbox (namespace, function, uniq, priority, created_us, due_us, expires_us, options, payload) VALUES (
        namespace, before || function, nullif(uniq, ''), coalesce(priority, 1), now_us,
        greatest(coalesce((run_at * 1000000)::bigint, now_us + (delay * 1000000)::bigint, 0), 0),
        coalesce(now_us + (expires * 1000000)::bigint, 0), options, coalesce(payload, '')
    ) RETURNING id INTO job_id;
    RETURN 'H:inbox:' || job_id;
END $$
    $create$, '{schema}', quote_ident(current_schema()));
END $do$;
