-- compatible from: 22
-- The schema. Version 22 is the first one that this version of Mainspring opens; later ones have a file each. Times are microseconds
-- of wall time, 0 where there is none; states and priorities as in mainspring.jobs.model.

-- Nodes that have the same schema in 22 files look for all of them.
INSERT INTO migrations (number, compatible_from) SELECT number, 22 FROM generate_series(1, 21) AS number;

-- One row per function name that was ever submitted; rows of jobs carry its number.
CREATE TABLE functions (
    id        int   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace text  NOT NULL,
    name      bytea NOT NULL
);
-- By a hash: a name may have 8 KiB, and an index entry 2,704 bytes at most.
CREATE UNIQUE INDEX functions_names ON functions (namespace, sha256(name));

-- One row per run of a node. Groups lock it FOR KEY SHARE, `end` locks it FOR UPDATE: nothing is committed behind the end.
CREATE TABLE terms (
    term       bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node       text    NOT NULL,
    ended      boolean NOT NULL DEFAULT false,
    last_group bigint  NOT NULL DEFAULT 0,      -- groups up to this one are folded into the counts
    gone       boolean NOT NULL DEFAULT false   -- ended, and nothing is left of it: no journal, no jobs, nobody who waits
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX terms_present ON terms (term) WHERE NOT gone;

-- The term of jobs that users' own transactions submit.
INSERT INTO terms (term, node, gone) OVERRIDING SYSTEM VALUE VALUES (0, 'inbox', true);

-- What the nodes say of themselves with each heartbeat. The row goes when its term ends.
CREATE TABLE nodes (
    term    bigint  PRIMARY KEY,
    counter bigint  NOT NULL,
    about   json    NOT NULL,                   -- mainspring.nodes.model.NodeRow
    -- Whether a node of a version before schema 21 wrote the row.
    old     boolean GENERATED ALWAYS AS (coalesce(about ->> 'mail', '') <> 'true') STORED
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Nodes that somebody asked to drain, by their names: it holds for whatever term a node of that name has, until it has left.
CREATE TABLE drains (node text COLLATE "C" PRIMARY KEY);

-- One row per group: the proof that it was committed, and what it changed in the counts. Nothing per group is ever updated.
CREATE TABLE journal (
    term       bigint     NOT NULL,
    number     bigint     NOT NULL,             -- of the group within its term
    functions  int[]      NOT NULL,
    states     smallint[] NOT NULL,
    priorities smallint[] NOT NULL,
    numbers    int[]      NOT NULL,
    PRIMARY KEY (term, number)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 1, autovacuum_vacuum_cost_delay = 0
);

-- How many jobs there are, without the groups that are not folded yet. Held jobs are counted as leased (2).
CREATE TABLE counts (
    function int      NOT NULL,
    state    smallint NOT NULL,
    priority smallint NOT NULL,
    number   bigint   NOT NULL,
    PRIMARY KEY (function, state, priority)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The first step of every group: MS001 where the term has ended, MS002 where this group has been committed.
CREATE FUNCTION enter(own bigint, this bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    found record;
BEGIN
    PERFORM FROM terms WHERE term = own AND NOT ended FOR KEY SHARE;
    -- In a snapshot of its own, behind the lock: nothing of this term was under way when it was taken, or can be any more.
    -- Both in one statement: between two, the group could be folded away.
    SELECT t.ended, t.last_group >= this OR EXISTS (SELECT FROM journal j WHERE j.term = own AND j.number = this) AS committed
    INTO found FROM terms t WHERE t.term = own;
    IF found.committed THEN
        RAISE 'group % of term % was committed', this, own USING ERRCODE = 'MS002';
    END IF;
    IF found.ended IS NOT false THEN
        RAISE 'term % was ended', own USING ERRCODE = 'MS001';
    END IF;
END
$$;

-- The jobs. Live ones are in `jobs`, what has succeeded in `ended`, what ended in another way in `dead`: a job is in one of them.

-- Each group of submissions takes one number; a job's place is that number * 2^20 + the job's rank in the group.
CREATE SEQUENCE places;

-- Live jobs only. Most are inserted already leased and deleted when they are settled, with no update in between.
CREATE TABLE jobs (
    id         bigint   PRIMARY KEY,
    place      bigint   NOT NULL,                -- the order of claims, kept from submission to the end
    created_us bigint   NOT NULL,
    term       bigint   NOT NULL DEFAULT 0,      -- under which it is held, 0 where nobody holds it
    due_us     bigint,                           -- these, like all that follows with NULL, cost nothing where they are not set
    expires_us bigint,
    started_us bigint,
    ended_us   bigint,
    function   int      NOT NULL,
    attempt    int      NOT NULL DEFAULT 0,
    suspects   int      NOT NULL DEFAULT 0,
    input_size int      NOT NULL DEFAULT 0,
    state      smallint NOT NULL,                -- 0 to 3
    priority   smallint NOT NULL,
    slot       smallint NOT NULL,                -- mainspring.ids.slot_of
    keep       boolean,                          -- true where it was submitted with keep_unique
    foreground boolean,                          -- true where it is dropped when nobody waits for it
    waited     boolean,                          -- true where there may be rows of it in `waits`
    uniq       bytea,
    options    bytea,                            -- MessagePack of mainspring.jobs.model.Options
    error      bytea,                            -- JSON of the last failure
    payload    bytea    NOT NULL,
    key        bytea,                            -- jobs of one function and one key share limits: `:` and the key
    attempts   bytea                             -- lines of JSON (mainspring.jobs.settlement_records)
) WITH (
    fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 1, autovacuum_analyze_scale_factor = 1, autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_cost_delay = 0
);
-- A payload is written once and read once: to compress it would cost more than its bytes on the disk.
ALTER TABLE jobs ALTER COLUMN payload SET STORAGE EXTERNAL;

CREATE INDEX queue ON jobs (function, priority, place) WHERE state = 1;
-- A claim in turns of keys goes from key to key, and passes over the rest of each, however long that is.
CREATE INDEX queue_by_key ON jobs (function, priority, key, place) WHERE state = 1 AND key IS NOT NULL;
-- A live job of a function has its unique to itself: this is what makes a computation single.
CREATE UNIQUE INDEX live ON jobs (function, uniq) WHERE uniq IS NOT NULL;
CREATE INDEX due ON jobs (due_us, id) WHERE state = 0;
-- A job that has been tried no longer expires: without `attempt = 0` here, it would be looked at for ever.
CREATE INDEX expiring ON jobs (expires_us, id) WHERE expires_us > 0 AND state < 2 AND attempt = 0;
-- For recovery. Settlements name the term and not the state, so that they cannot take this index for the primary key.
CREATE INDEX held ON jobs (term) WHERE state IN (2, 3);

-- Where clients wait for a job: the terms of their nodes.
CREATE TABLE waits (
    job_id bigint NOT NULL,
    term   bigint NOT NULL,
    PRIMARY KEY (job_id, term)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX waits_of ON waits (term);

-- What has succeeded, by days of its end. Whole partitions are dropped; the one for all other times is swept row by row.
CREATE TABLE ended (
    id          bigint   NOT NULL,
    ended_us    bigint   NOT NULL,
    created_us  bigint   NOT NULL,
    term        bigint   NOT NULL,
    due_us      bigint,
    expires_us  bigint,
    started_us  bigint,
    function    int      NOT NULL,
    attempt     int      NOT NULL,
    suspects    int      NOT NULL,
    input_size  int      NOT NULL,
    output_size int      NOT NULL,
    priority    smallint NOT NULL,
    keep        boolean,
    foreground  boolean,
    uniq        bytea,
    options     bytea,
    error       bytea,
    result      bytea,
    payload     bytea,                           -- kept if it is small
    attempts    bytea
) PARTITION BY RANGE (ended_us);

CREATE INDEX ended_id ON ended (id);
CREATE INDEX ended_kept ON ended (function, uniq, ended_us, id) WHERE keep;

CREATE TABLE ended_other PARTITION OF ended DEFAULT;
CREATE INDEX ended_other_time ON ended_other (ended_us);

-- What failed for good, was cancelled or expired, by weeks of its end; whole, so that it can be redriven.
CREATE TABLE dead (
    id         bigint   NOT NULL,
    place      bigint   NOT NULL,
    ended_us   bigint   NOT NULL,
    created_us bigint   NOT NULL,
    term       bigint   NOT NULL,
    due_us     bigint,
    expires_us bigint,
    started_us bigint,
    function   int      NOT NULL,
    attempt    int      NOT NULL,
    suspects   int      NOT NULL,
    input_size int      NOT NULL,
    state      smallint NOT NULL,                -- 5 to 7
    priority   smallint NOT NULL,
    slot       smallint NOT NULL,
    keep       boolean,
    foreground boolean,
    uniq       bytea,
    options    bytea,
    error      bytea,
    payload    bytea    NOT NULL,
    attempts   bytea
) PARTITION BY RANGE (ended_us);

CREATE INDEX dead_id ON dead (id);
CREATE INDEX dead_time ON dead (state, ended_us);

CREATE TABLE dead_other PARTITION OF dead DEFAULT;

-- The tags of jobs. Most jobs have none, and no row here. Rows of deleted jobs stay until a sweep comes to them.
CREATE TABLE tags (
    namespace  text   COLLATE "C" NOT NULL,
    tag        text   COLLATE "C" NOT NULL,
    job        bigint NOT NULL,
    created_us bigint NOT NULL,
    PRIMARY KEY (namespace, tag, job)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Partitions that were taken off, and are counted out of the counts before they are dropped.
CREATE TABLE retired (
    name  text PRIMARY KEY,
    block bigint NOT NULL DEFAULT 0     -- up to which it is counted
);

-- What a success leaves of a payload: all of it if `kept` is NULL. The server inlines both functions.
CREATE FUNCTION kept_payload(payload bytea, kept bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN kept IS NULL THEN payload ELSE nullif(kept, '') END
$$;

CREATE FUNCTION appended_record(attempts bytea, record bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN record IS NULL THEN attempts WHEN length(attempts) + length(record) <= 32768 THEN attempts || record ELSE record
    END
$$;

-- A group as nearly all are: jobs that have succeeded, and new ones (mainspring.engines.postgres.writer). True: it is written, as by the
-- statements `succeed` and `submit_unique` of jobs.sql with the fence before them and the journal behind. False: something is not as
-- expected, and nothing is written. The error that undoes it ends in the block around it, so that it leaves no line in the server's log.
-- Nodes call the function of their own version: a later one that takes or does something else gets another name.
CREATE FUNCTION usual_2(
    bigint, bigint,
    bigint[], bigint[], int[], int[], bigint[], bigint[], bigint[], bytea[], bytea[],
    bigint[], int[], bigint[], bigint[], bigint[], bigint[], int[], int[], smallint[], smallint[], smallint[], boolean[], boolean[],
    bytea[], bytea[], bytea[], bytea[], boolean[],
    int[], smallint[], smallint[], int[],
    bytea[], bytea[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    written bigint;
BEGIN
    PERFORM enter($1, $2);
    IF cardinality($3) > 0 THEN
        WITH gone AS (
            DELETE FROM jobs USING unnest(
                $3, $4, $5, $6, $7, $8, $9, $10, $11, $34, $35)
            AS s (id, term, attempt, suspects, started_us, ended_us, due_us, result, error, payload, record)
            WHERE jobs.id = ANY (ARRAY[s.id]) AND jobs.term = s.term
            RETURNING jobs.id, s.ended_us, jobs.created_us, jobs.term, s.due_us, jobs.expires_us, s.started_us, jobs.function, s.attempt,
                s.suspects, jobs.input_size, jobs.priority, jobs.keep, jobs.foreground, jobs.uniq, jobs.options, s.error, s.result,
                jobs.waited, kept_payload(jobs.payload, s.payload) AS payload, appended_record(jobs.attempts, s.record) AS attempts
        ), stored AS (
            INSERT INTO ended (id, ended_us, created_us, term, due_us, expires_us, started_us, function, attempt, suspects, input_size,
                output_size, priority, keep, foreground, uniq, options, error, result,
                payload, attempts)
            SELECT id, coalesce(ended_us, 0), created_us, term, due_us, expires_us, started_us, function, attempt, suspects, input_size,
                coalesce(length(result), 0), priority, keep, foreground, uniq, options, error, result,
                payload, attempts
            FROM gone
        )
        SELECT count(*) INTO written FROM gone WHERE waited IS NOT TRUE;
        IF written < cardinality($3) THEN
            RAISE 'a lease has ended, or somebody waits' USING ERRCODE = 'MS004';
        END IF;
    END IF;
    IF cardinality($12) > 0 THEN
        INSERT INTO jobs (id, place, created_us, due_us, expires_us, term, function, input_size, state, priority, slot, foreground,
            waited, options, payload, key, uniq, keep)
        SELECT s.id, base + s.rank, s.created_us, s.due_us, s.expires_us, coalesce(s.term, 0), s.function, s.input_size, s.state,
            s.priority, s.slot, s.foreground, s.waited, s.options, s.payload, s.key, s.uniq, s.keep
        FROM (SELECT nextval('places') << 20 AS base, set_config('lock_timeout', '100ms', true)) AS places, unnest(
            $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29)
        AS s (id, rank, created_us, due_us, expires_us, term, function, input_size, state, priority, slot, foreground, waited, options,
            payload, key, uniq, keep)
        ON CONFLICT (function, uniq) WHERE uniq IS NOT NULL DO NOTHING;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written < cardinality($12) THEN
            RAISE 'a unique is taken' USING ERRCODE = 'MS004';
        END IF;
    END IF;
    INSERT INTO journal (term, number, functions, states, priorities, numbers) VALUES ($1, $2, $30, $31, $32, $33);
    RETURN true;
EXCEPTION
    WHEN SQLSTATE 'MS004' OR lock_not_available THEN
        RETURN false;
END
$$;

-- The same without the arguments and the record of each success, for nodes of versions before schema 14.
CREATE FUNCTION usual(
    bigint, bigint,
    bigint[], bigint[], int[], int[], bigint[], bigint[], bigint[], bytea[], bytea[],
    bigint[], int[], bigint[], bigint[], bigint[], bigint[], int[], int[], smallint[], smallint[], smallint[], boolean[], boolean[],
    bytea[], bytea[], bytea[], bytea[], boolean[],
    int[], smallint[], smallint[], int[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    written bigint;
BEGIN
    PERFORM enter($1, $2);
    IF cardinality($3) > 0 THEN
        WITH gone AS (
            DELETE FROM jobs USING unnest(
                $3, $4, $5, $6, $7, $8, $9, $10, $11)
            AS s (id, term, attempt, suspects, started_us, ended_us, due_us, result, error)
            WHERE jobs.id = ANY (ARRAY[s.id]) AND jobs.term = s.term
            RETURNING jobs.id, s.ended_us, jobs.created_us, jobs.term, s.due_us, jobs.expires_us, s.started_us, jobs.function, s.attempt,
                s.suspects, jobs.input_size, jobs.priority, jobs.keep, jobs.foreground, jobs.uniq, jobs.options, s.error, s.result,
                jobs.waited
        ), stored AS (
            INSERT INTO ended (id, ended_us, created_us, term, due_us, expires_us, started_us, function, attempt, suspects, input_size,
                output_size, priority, keep, foreground, uniq, options, error, result)
            SELECT id, coalesce(ended_us, 0), created_us, term, due_us, expires_us, started_us, function, attempt, suspects, input_size,
                coalesce(length(result), 0), priority, keep, foreground, uniq, options, error, result
            FROM gone
        )
        SELECT count(*) INTO written FROM gone WHERE waited IS NOT TRUE;
        IF written < cardinality($3) THEN
            RAISE 'a lease has ended, or somebody waits' USING ERRCODE = 'MS004';
        END IF;
    END IF;
    IF cardinality($12) > 0 THEN
        INSERT INTO jobs (id, place, created_us, due_us, expires_us, term, function, input_size, state, priority, slot, foreground,
            waited, options, payload, key, uniq, keep)
        SELECT s.id, base + s.rank, s.created_us, s.due_us, s.expires_us, coalesce(s.term, 0), s.function, s.input_size, s.state,
            s.priority, s.slot, s.foreground, s.waited, s.options, s.payload, s.key, s.uniq, s.keep
        FROM (SELECT nextval('places') << 20 AS base, set_config('lock_timeout', '100ms', true)) AS places, unnest(
            $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29)
        AS s (id, rank, created_us, due_us, expires_us, term, function, input_size, state, priority, slot, foreground, waited, options,
            payload, key, uniq, keep)
        ON CONFLICT (function, uniq) WHERE uniq IS NOT NULL DO NOTHING;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written < cardinality($12) THEN
            RAISE 'a unique is taken' USING ERRCODE = 'MS004';
        END IF;
    END IF;
    INSERT INTO journal (term, number, functions, states, priorities, numbers) VALUES ($1, $2, $30, $31, $32, $33);
    RETURN true;
EXCEPTION
    WHEN SQLSTATE 'MS004' OR lock_not_available THEN
        RETURN false;
END
$$;

-- What users' own transactions submit, until a node moves it on. Ids are those of term 0. What a node could not move on is refused
-- here: it would hold up all that is behind it.
CREATE SEQUENCE inbox_ids MAXVALUE 999999999999;

CREATE TABLE inbox (
    id         bigint   PRIMARY KEY DEFAULT nextval('inbox_ids'),
    namespace  text     NOT NULL DEFAULT 'default',
    function   bytea    NOT NULL CHECK (length(function) BETWEEN 1 AND 8192),
    uniq       bytea    CHECK (length(uniq) BETWEEN 1 AND 64),
    priority   smallint NOT NULL DEFAULT 1 CHECK (priority BETWEEN 0 AND 2),
    created_us bigint   NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    due_us     bigint   NOT NULL DEFAULT 0,
    expires_us bigint   NOT NULL DEFAULT 0,
    options    bytea,
    payload    bytea    NOT NULL DEFAULT ''
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE inbox ALTER COLUMN payload SET STORAGE EXTERNAL;

-- Submissions of the inbox that joined another job: whoever asks for them is shown that one.
CREATE TABLE aliases (
    id         bigint PRIMARY KEY,
    job_id     bigint NOT NULL,
    created_us bigint NOT NULL
);

CREATE INDEX aliases_time ON aliases (created_us);
CREATE INDEX aliases_of ON aliases (job_id);

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

-- The inbox checks its rows itself, however they are inserted: a row that a node could not move on, or that would break a list later,
-- fails its user's statement.
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

-- Submits in any namespace, with the rights of the store's owner. `submit` calls it, or the function of one namespace that calls it. In
-- other namespaces than `default`, the inbox has the function's whole key (mainspring.namespaces). The arguments are checked in one
-- expression, and the pattern of a namespace only if it is another one than `default`: each statement of PL/pgSQL takes time, and so
-- does the pattern.
CREATE FUNCTION submit_anywhere(
    function bytea, payload bytea, uniq bytea, priority int, delay float8, run_at float8, expires float8, options bytea, namespace text
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
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
END $$;

-- What users call in their own transactions: adds a row to the inbox and returns the job's handle. It never waits for anybody.
-- `run_at` is seconds since 1970, `delay` and `expires` are seconds from now, `options` is MessagePack of mainspring.jobs.model.Options.
-- It runs with the rights of its caller: what they may submit is decided by the function that they may execute. The function
-- of one namespace is made by `mainspring migrate --grant-submit`. Names have the schema: a path of its own would cost each call more.
DO $do$
BEGIN
    EXECUTE replace(replace(replace($create$
CREATE FUNCTION submit(
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

-- For what refers to the function of before namespaces, such as a view.
CREATE FUNCTION submit_1(
    function bytea, payload bytea DEFAULT '', uniq bytea DEFAULT '', priority int DEFAULT 1, delay float8 DEFAULT NULL,
    run_at float8 DEFAULT NULL, expires float8 DEFAULT NULL, options bytea DEFAULT NULL
) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    RETURN submit(function, payload, uniq, priority, delay, run_at, expires, options, 'default');
END $$;

-- What is said of a function's limits; `said` is MessagePack of mainspring.resources.rules.FunctionLimits.
CREATE TABLE limits (
    function int    PRIMARY KEY,
    version  bigint NOT NULL,
    said     bytea  NOT NULL
);

-- What nodes have and want of the tokens of a pool: a function's own (empty), or those of one of its keys. The rows of terms that
-- have ended count for nothing.
CREATE TABLE tokens (
    function int    NOT NULL,
    pool     bytea  NOT NULL,
    term     bigint NOT NULL,
    number   int    NOT NULL,
    wanted   int    NOT NULL,
    asked_us bigint NOT NULL,
    PRIMARY KEY (function, pool, term)
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);

-- The starts that a pool has left, in parts of a token; see mainspring.resources.rules.Bucket.
CREATE TABLE buckets (
    function   int    NOT NULL,
    pool       bytea  NOT NULL,
    number     bigint NOT NULL,             -- the rate at which it was filled last
    per_us     bigint NOT NULL,
    burst      bigint NOT NULL,
    level      bigint NOT NULL,
    updated_us bigint NOT NULL,
    PRIMARY KEY (function, pool)
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);

-- Schedules. What users say of them changes seldom, and every node knows it; how they stand changes with each fire time. So these
-- are two tables, and the second one is narrow. Names are compared by their bytes, as everywhere else.

-- What users say, as MessagePack of mainspring.schedules.model.Schedule. A removed schedule leaves its name, so that the other nodes
-- hear of it: they read what has a newer version than what they know.
CREATE TABLE specifications (
    name     text   COLLATE "C" PRIMARY KEY,
    version  bigint NOT NULL,               -- of the catalogue that brought it
    schedule bytea                          -- NULL once it is removed
);

CREATE INDEX specifications_version ON specifications (version);

-- The number of changes to the specifications so far: one row.
CREATE TABLE catalogue (version bigint NOT NULL);
INSERT INTO catalogue VALUES (0);

-- How they stand. One update for each fire time, never in place: `next_us` is indexed.
CREATE TABLE schedules (
    name    text   COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,                -- changes are guarded by it
    next_us bigint,                         -- the next fire time, NULL where none comes
    queued  int    NOT NULL,                -- rows of it that wait
    state   bytea  NOT NULL                 -- MessagePack of mainspring.schedules.model.ScheduleState
) WITH (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX schedules_due ON schedules (next_us, name) WHERE next_us IS NOT NULL;
CREATE INDEX schedules_queued ON schedules (queued) WHERE queued > 0;

-- What became of each fire time. The primary key is what makes it single. Each row is written once when it is decided and
-- once when its run has ended. `live` and `job` are set only as long as somebody looks for the row by them, so that what is finished
-- is in no index but the first.
CREATE TABLE fires (
    schedule text     COLLATE "C" NOT NULL,
    fire_us  bigint   NOT NULL,
    job      bigint,                        -- until it has an outcome
    standing smallint NOT NULL,             -- as in mainspring.schedules.store.Standing
    live     text     COLLATE "C",          -- the schedule's name again, until the row is finished
    fire     bytea    NOT NULL,             -- MessagePack of mainspring.schedules.model.Fire
    PRIMARY KEY (schedule, fire_us)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX fires_live ON fires (live) WHERE live IS NOT NULL;
CREATE INDEX fires_job ON fires (job) WHERE job IS NOT NULL;
CREATE INDEX fires_to_mend ON fires (standing) WHERE standing IN (2, 3);

-- How many parents of a child have not arrived yet, by occasion; rows go when all have.
CREATE TABLE joins (
    child        text    COLLATE "C" NOT NULL,
    fire_us      bigint  NOT NULL,
    parents_left int     NOT NULL,
    stopped      boolean NOT NULL,
    PRIMARY KEY (child, fire_us)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Which sets of schedules code has declared, and when they were seen.
CREATE TABLE declarations (
    app           text   NOT NULL,
    digest        bytea  NOT NULL,
    first_seen_us bigint NOT NULL,
    last_seen_us  bigint NOT NULL,
    PRIMARY KEY (app, digest)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Rows of `fires` are dropped in the end, the oldest of each schedule first: up to which fire time, by the schedule's name.
CREATE TABLE forgotten (
    schedule text   COLLATE "C" PRIMARY KEY,
    until_us bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Lines that tasks have logged, in chunks of up to 16 KiB, each with the lines of one delivery that came together.
CREATE TABLE logs (
    id          bigint   NOT NULL,          -- the time in microseconds, or the node's next free number: the sweep deletes the lowest ones
    job         bigint   NOT NULL,
    namespace   text     COLLATE "C" NOT NULL,
    function    bytea    NOT NULL,
    attempt     int      NOT NULL,
    delivery_us bigint   NOT NULL,
    first       bigint   NOT NULL,          -- the number of the first line
    lines       int      NOT NULL,
    levels      int      NOT NULL,          -- a bit for each level that occurs
    body        bytea    NOT NULL,          -- MessagePack of mainspring.job_logs.model.Line
    PRIMARY KEY (job, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX logs_id ON logs (id);

-- What happened to the jobs of each function, by minute and by half hour, as each node counted it; a node writes once a minute.
CREATE TABLE series (
    namespace text    COLLATE "C" NOT NULL,
    function  bytea   NOT NULL,
    step      int     NOT NULL,             -- seconds
    at        bigint  NOT NULL,             -- the begin, in seconds since 1970
    term      bigint  NOT NULL,
    bucket    bytea   NOT NULL,             -- MessagePack of mainspring.series.Bucket
    PRIMARY KEY (namespace, function, step, at, term)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
-- For the sweep.
CREATE INDEX series_old ON series (step, at);

-- Operations on many jobs. Their ids are ids of jobs' kind: the term of the node that accepted them, and a number.
CREATE TABLE operations (
    id         bigint   PRIMARY KEY,
    namespace  text     NOT NULL,
    status     smallint NOT NULL,   -- 0 while it runs: mainspring.bulk.rules.Status
    term       bigint   NOT NULL,   -- of the node that works on it
    revision   bigint   NOT NULL,   -- incremented with each write
    created_us bigint   NOT NULL,
    ended_us   bigint   NOT NULL,
    spec       bytea    NOT NULL,   -- MessagePack of mainspring.bulk.rules.Spec
    progress   bytea    NOT NULL    -- MessagePack of mainspring.bulk.rules.Progress
) WITH (fillfactor = 50);
CREATE INDEX operations_of ON operations (namespace, id);
CREATE INDEX operations_running ON operations (id) WHERE status = 0;
CREATE INDEX operations_ended ON operations (ended_us) WHERE status > 0;

-- The jobs that the steps of operations have changed or have failed to change.
CREATE TABLE operation_steps (
    operation bigint NOT NULL,
    revision  bigint NOT NULL,      -- of the operation after the step
    jobs      bytea  NOT NULL,      -- MessagePack of mainspring.bulk.rules.Touched
    PRIMARY KEY (operation, revision)
);

-- Tokens, sessions of browsers and sign-in links. A secret itself is never stored.
CREATE TABLE credentials (
    digest bytea PRIMARY KEY,               -- SHA-256 of the secret
    kind text COLLATE "C" NOT NULL,         -- mainspring.access.caller.Kind
    token text COLLATE "C" NOT NULL,        -- the token's id; of a session: its token's, or empty
    expires_us bigint NOT NULL,             -- 0: never
    used_us bigint NOT NULL,
    data bytea NOT NULL                     -- MessagePack of mainspring.access.store.Credential
);
CREATE UNIQUE INDEX credential_tokens ON credentials (token) WHERE kind = 'ms_';
CREATE INDEX credential_sessions ON credentials (token) WHERE kind = 'mss_';
CREATE INDEX credential_ends ON credentials (expires_us) WHERE kind <> 'ms_';

-- The number of revocations so far: one row.
CREATE TABLE revocations (number bigint NOT NULL);
INSERT INTO revocations VALUES (0);

-- Who did what.
CREATE TABLE audit (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_us bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    namespace text COLLATE "C" NOT NULL,
    what text COLLATE "C" NOT NULL,
    act bytea NOT NULL,                     -- MessagePack of mainspring.access.audit.Act
    object bigint                           -- the number of the act's object (mainspring.access.audit.object_number)
);
CREATE INDEX audit_times ON audit (at_us);
CREATE INDEX audit_whats ON audit (what, number);
CREATE INDEX audit_namespaces ON audit (namespace, number);
CREATE INDEX audit_objects ON audit (object, number);

-- Answers to requests with a key of their client, so that a repeated request gets the same answer.
CREATE TABLE replies (
    key bytea PRIMARY KEY,                  -- SHA-256 of the caller, the route and the client's key
    request bytea NOT NULL,                 -- SHA-256 of the request
    at_us bigint NOT NULL,
    reply bytea                             -- MessagePack of mainspring.access.idempotency.KeptReply; NULL: not answered
);
CREATE INDEX replies_old ON replies (at_us);

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

-- Locks of objects that have rights, in place of advisory locks: any role that may connect can take an advisory lock, and pg_locks
-- shows it the numbers of those that are held. While nodes of versions before schema 21 are there, the others take both.

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

-- The first step of every group that has to do with schedules: returns the catalogue's version, which is that of the whole group.
-- Whoever changes specifications waits until the groups under way that rely on them have ended, and keeps new ones out.
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

-- The same for nodes of versions before schema 21.
CREATE FUNCTION enter_schedules(alone boolean) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    lock CONSTANT bigint := hashtextextended(current_schema() || ' schedules', 0);
BEGIN
    IF alone THEN
        PERFORM pg_advisory_xact_lock(lock);
    ELSE
        PERFORM pg_advisory_xact_lock_shared(lock);
    END IF;
    -- Who is frozen with a lock keeps it for some seconds. The others wait a little, and then pass over what only he would fire.
    PERFORM set_config('lock_timeout', '300ms', true);
    RETURN (SELECT version FROM catalogue);  -- in a snapshot of its own, behind the lock
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

-- Every function that runs with the owner's rights has a path that nobody can put an object into: without `pg_temp` at the end, a
-- caller's temporary table would come first. And no function is anybody's: roles with default privileges on the tables may use it.
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
        IF one.proname IN ('check_submission', 'submit_anywhere', 'submit_1') THEN
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
