-- compatible from: 2
-- The jobs. Live ones are in `jobs`, what has succeeded in `ended`, what ended in another way in `dead`: a job is in one of them.
-- Times are microseconds of wall time; states and priorities as in mainspring.jobs.model.

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
    payload    bytea    NOT NULL
) WITH (
    fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 1, autovacuum_analyze_scale_factor = 1, autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_cost_delay = 0
);
-- A payload is written once and read once: to compress it would cost more than its bytes on the disk.
ALTER TABLE jobs ALTER COLUMN payload SET STORAGE EXTERNAL;

CREATE INDEX queue ON jobs (function, priority, place) WHERE state = 1;
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
    result      bytea
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
    payload    bytea    NOT NULL
) PARTITION BY RANGE (ended_us);

CREATE INDEX dead_id ON dead (id);
CREATE INDEX dead_time ON dead (state, ended_us);

CREATE TABLE dead_other PARTITION OF dead DEFAULT;

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

-- What users call in their own transactions: adds a row to the inbox and returns the job's handle. It never waits for anybody.
-- `run_at` is seconds since 1970, `delay` and `expires` are seconds from now, `options` is MessagePack of
-- mainspring.jobs.model.Options.
CREATE FUNCTION submit(
    function bytea, payload bytea DEFAULT '', uniq bytea DEFAULT '', priority int DEFAULT 1, delay float8 DEFAULT NULL,
    run_at float8 DEFAULT NULL, expires float8 DEFAULT NULL, options bytea DEFAULT NULL
) RETURNS text LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    now_us  bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    job_id  bigint;
BEGIN
    IF function IS NULL OR length(function) NOT BETWEEN 1 AND 8192 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'mainspring: a function''s name has 1 to 8192 bytes';
    ELSIF length(uniq) > 64 THEN
        RAISE invalid_parameter_value USING MESSAGE =
            format('mainspring: a unique has up to 64 bytes, this one has %s', length(uniq));
    ELSIF delay < 0 OR expires < 0 OR (delay IS NOT NULL AND run_at IS NOT NULL) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'mainspring: give delay or run_at, and no negative times';
    END IF;
    INSERT INTO inbox (function, uniq, priority, created_us, due_us, expires_us, options, payload) VALUES (
        function, nullif(uniq, ''), coalesce(priority, 1), now_us,
        greatest(coalesce((run_at * 1000000)::bigint, now_us + (delay * 1000000)::bigint, 0), 0),
        coalesce(now_us + (expires * 1000000)::bigint, 0), options, coalesce(payload, '')
    ) RETURNING id INTO job_id;
    RETURN 'H:inbox:' || job_id;
END $$;

-- Submissions of the inbox that joined another job: whoever asks for them is shown that one.
CREATE TABLE aliases (
    id         bigint PRIMARY KEY,
    job_id     bigint NOT NULL,
    created_us bigint NOT NULL
);

CREATE INDEX aliases_time ON aliases (created_us);
CREATE INDEX aliases_of ON aliases (job_id);

-- Partitions that were taken off, and are counted out of the counts before they are dropped.
CREATE TABLE retired (
    name  text PRIMARY KEY,
    block bigint NOT NULL DEFAULT 0     -- up to which it is counted
);
