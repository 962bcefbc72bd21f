-- compatible from: 22
-- Signals to runs that users send in transactions of their own: `signal` is for signals what `submit` is for jobs.

CREATE TABLE sent_signals (
    number    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_us     bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    namespace text   NOT NULL,
    run       text   NOT NULL,                   -- a handle or a workflow id
    name      text   NOT NULL,
    request   text   NOT NULL,                   -- identifies the request; empty for none
    input     bytea  NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE sent_signals ALTER COLUMN input SET STORAGE EXTERNAL;

-- Those that reached no run, with the reason, for the operator.
CREATE TABLE refused_signals (
    number    bigint PRIMARY KEY,                -- of sent_signals
    at_us     bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    reason    text   NOT NULL,
    namespace text   NOT NULL,
    run       text   NOT NULL,
    name      text   NOT NULL,
    request   text   NOT NULL,
    input     bytea  NOT NULL
);
ALTER TABLE refused_signals ALTER COLUMN input SET STORAGE EXTERNAL;

-- Signals runs of any namespace, with the rights of the store's owner. `signal` calls it, or the function of one namespace that
-- calls it.
CREATE FUNCTION signal_anywhere(run text, name text, input bytea, request text, namespace text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
DECLARE
    fault text := CASE
        WHEN namespace IS NULL OR namespace COLLATE "C" !~ '^[a-z0-9][a-z0-9_.-]{0,62}$' THEN format(
            '%L is no namespace: use 1 to 63 of the characters a-z, 0-9, ''_'', ''.'' and ''-'', and begin with a letter or a digit',
            left(namespace, 100))
        WHEN run IS NULL OR octet_length(run) NOT BETWEEN 1 AND 128 THEN
            'a run has a handle, such as H:node:1000000000001, or a workflow id: give one of at most 128 bytes'
        WHEN name IS NULL OR length(name) NOT BETWEEN 1 AND 256 THEN 'the name of a signal has 1 to 256 characters'
        WHEN length(request) > 256 THEN format('a request has up to 256 characters, this one has %s', length(request))
        WHEN length(input) > 268435456 THEN format(
            'the value has %s bytes, and a signal takes 268435456: store larger data elsewhere, and send its location',
            length(input))
    END;
BEGIN
    IF fault IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'mainspring: ' || fault;
    END IF;
    INSERT INTO sent_signals (namespace, run, name, request, input)
    VALUES (namespace, run, name, coalesce(request, ''), coalesce(input, ''));
END $$;

-- What users call in their own transactions. It runs with the rights of its caller: whose runs they may signal is decided by the
-- function that they may execute, as of `submit`. It never waits for anybody.
DO $do$
BEGIN
    EXECUTE replace(replace(replace($create$
CREATE FUNCTION signal(run text, name text, input bytea DEFAULT '', request text DEFAULT '', namespace text DEFAULT 'default')
RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    own regprocedure;
BEGIN
    IF has_function_privilege('{text}.signal_anywhere(text, text, bytea, text, text)'::regprocedure, 'EXECUTE') THEN
        PERFORM {at}.signal_anywhere(run, name, input, request, namespace);
        RETURN;
    END IF;
    own := to_regprocedure(format('{format}.signal_%s(text, text, bytea, text)',
        encode(substr(sha256(convert_to(namespace, 'UTF8')), 1, 16), 'hex')));
    IF own IS NULL OR NOT has_function_privilege(own, 'EXECUTE') THEN
        RAISE insufficient_privilege USING MESSAGE = format(
            'mainspring: the role %s may not signal runs of the namespace %s', current_user, left(namespace, 100)),
            HINT = 'The owner of the store grants it by: mainspring migrate --grant-submit ROLE --namespace NAMESPACE';
    END IF;
    EXECUTE format('SELECT %s($1, $2, $3, $4)', own::oid::regproc) USING run, name, input, request;
END $$
    $create$, '{at}', quote_ident(current_schema())), '{text}', replace(quote_ident(current_schema()), '''', '''''')),
    '{format}', replace(replace(quote_ident(current_schema()), '''', ''''''), '%', '%%'));
    EXECUTE format('ALTER FUNCTION signal_anywhere(text, text, bytea, text, text) SET search_path = pg_catalog, %I, pg_temp',
        current_schema());
END $do$;
REVOKE ALL ON FUNCTION signal_anywhere(text, text, bytea, text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION signal(text, text, bytea, text, text) FROM PUBLIC;
