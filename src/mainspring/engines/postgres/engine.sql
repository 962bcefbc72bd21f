-- name: functions_named
SELECT f.id, f.namespace, f.name FROM functions f
JOIN unnest($1::text[], $2::bytea[]) AS asked (namespace, name)
    ON f.namespace = asked.namespace AND sha256(f.name) = sha256(asked.name);

-- name: functions_numbered
SELECT id, namespace, name FROM functions WHERE id = ANY ($1::int[]);

-- Sorted by the caller: two groups that name the same functions run one after the other and do not deadlock.
-- name: functions_new
INSERT INTO functions (namespace, name)
SELECT namespace, name FROM unnest($1::text[], $2::bytea[]) AS asked (namespace, name)
ON CONFLICT (namespace, sha256(name)) DO NOTHING
RETURNING id, namespace, name;

-- name: nodes_of
SELECT term, node FROM terms WHERE term = ANY ($1::bigint[]);

-- name: begin_term
WITH begun AS (INSERT INTO terms (node) VALUES ($1) RETURNING term)
INSERT INTO nodes (term, counter, about) SELECT term, 0, $2::json FROM begun RETURNING term;

-- The first table of the store, by name, to which the role lacks a right. Partitions are written through their tables. Tables of
-- other owners are not checked.
-- name: withheld
SELECT min(c.relname) FROM pg_class c, pg_class store
WHERE store.oid = 'jobs'::regclass AND c.relnamespace = store.relnamespace AND c.relowner = store.relowner
    AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND NOT (
        has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
        AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'));

-- name: terms
SELECT term, node FROM terms ORDER BY term DESC LIMIT 10000;

-- A session that runs groups holds a lock as a mark until it ends. Nobody waits for it. Its numbers are of the term and of the session.
-- name: mark_session
SELECT pg_try_advisory_lock($1::bigint::bit(32)::int, $2::int);

-- The sessions with the mark of a term. Any role can take such a lock: those count that this role may terminate, because nodes of
-- a store have one role, or roles with its rights.
-- part: marked
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.objsubid = 2 AND l.granted AND l.pid <> pg_backend_pid() AND l.classid = $1::bigint::oid;

-- name: break_off
SELECT pg_terminate_backend(pid) FROM (SELECT DISTINCT a.pid {marked} AND pg_has_role(a.usesysid, 'MEMBER') OFFSET 0) AS sessions;

-- name: marked_sessions
SELECT DISTINCT a.pid, a.usename::text, a.application_name {marked};

-- Whether a session waits for its client's next message. Between the parts of a statement it waits so and counts as active.
-- name: activity
SELECT state LIKE 'idle%' OR wait_event = 'ClientRead' AS waits, state_change FROM pg_stat_activity WHERE pid = $1;

-- The journal is read from above the last folded group: the head of its index holds dead tuples, sometimes many.
-- name: counts
SELECT function, state, priority, sum(number)::bigint FROM (
    SELECT function, state, priority, number FROM counts
    UNION ALL
    SELECT entry.* FROM terms t
    CROSS JOIN LATERAL (SELECT * FROM journal j WHERE j.term = t.term AND j.number > t.last_group OFFSET 0) AS j
    CROSS JOIN LATERAL unnest(j.functions, j.states, j.priorities, j.numbers) AS entry
    WHERE NOT t.gone
) AS parts (function, state, priority, number)
GROUP BY function, state, priority HAVING sum(number) <> 0;

-- One statement, so that a reader sees each group in the journal or in the counts, never in both and never in none.
-- name: fold
WITH due AS MATERIALIZED (
    SELECT t.term, t.last_group,
        least(t.last_group + 20000, (SELECT max(j.number) FROM journal j WHERE j.term = t.term) - (NOT t.ended)::int) AS upto
    FROM terms t WHERE NOT t.gone AND (SELECT has_turn(-1, $1::bigint::bit(32)::int))
), folded AS (
    DELETE FROM journal j USING due
    WHERE j.term = due.term AND j.number > due.last_group AND j.number <= due.upto
    RETURNING j.*
), summed AS (
    INSERT INTO counts AS c (function, state, priority, number)
    SELECT e.function, e.state, e.priority, sum(e.number) FROM folded f
    CROSS JOIN LATERAL unnest(f.functions, f.states, f.priorities, f.numbers) AS e (function, state, priority, number)
    GROUP BY e.function, e.state, e.priority HAVING sum(e.number) <> 0
    ON CONFLICT (function, state, priority) DO UPDATE SET number = c.number + excluded.number
), noted AS (
    UPDATE terms t SET last_group = f.last FROM (SELECT term, max(number) AS last FROM folded GROUP BY term) AS f
    WHERE t.term = f.term
)
SELECT count(*) FROM folded;

-- name: forget_terms
UPDATE terms t SET gone = true
WHERE t.ended AND NOT t.gone AND NOT EXISTS (SELECT FROM journal j WHERE j.term = t.term)
    AND NOT EXISTS (SELECT FROM jobs WHERE jobs.term = t.term AND jobs.state IN ({leased}, {running}))
    AND NOT EXISTS (SELECT FROM waits w WHERE w.term = t.term);

-- The server process that answers, and the ids of those sessions that have the server processes $1. The begin of a session is hidden
-- from roles without the rights of its own.
-- part: sessions
pg_backend_pid(), ARRAY(
    SELECT concat(a.pid, '.', (extract(epoch FROM a.backend_start) * 1000000)::bigint) FROM pg_stat_activity a
    WHERE a.pid = ANY ($1::int[]));

-- name: listed
SELECT {sessions};

-- name: beat
WITH mine AS (
    UPDATE nodes SET counter = $3, about = $4::json WHERE term = $2 RETURNING term, counter, about
)
SELECT term, counter, about, EXISTS (SELECT FROM drains WHERE node = about ->> 'name'), {sessions}
FROM (SELECT * FROM mine UNION ALL SELECT term, counter, about FROM nodes WHERE term <> $2) AS present
ORDER BY term;

-- name: nodes
SELECT term, counter, about, EXISTS (SELECT FROM drains WHERE node = about ->> 'name'), {sessions} FROM nodes ORDER BY term;

-- name: now
SELECT extract(epoch FROM clock_timestamp())::float8;

-- This lock comes first: the term's groups and heartbeats end before it, or find the term ended.
-- name: close_term
SELECT ended FROM terms WHERE term = $1 FOR UPDATE;

-- name: close_row
SELECT counter FROM nodes WHERE term = $1 FOR UPDATE;

-- name: end_row
DELETE FROM nodes WHERE term = $1;

-- name: of_dead
SELECT node, (SELECT count(*) FROM jobs WHERE jobs.term = terms.term AND state IN ({leased}, {running})) FROM terms WHERE term = $1;

-- name: end_term
UPDATE terms SET ended = true WHERE term = $1;

-- name: holds
SELECT EXISTS (SELECT FROM jobs WHERE term = $1 AND state IN ({leased}, {running}));

-- name: abandoned
SELECT term FROM terms t
WHERE t.ended AND NOT t.gone AND (
    EXISTS (SELECT FROM jobs WHERE jobs.term = t.term AND jobs.state IN ({leased}, {running}))
    OR EXISTS (SELECT FROM waits w WHERE w.term = t.term))
ORDER BY term;

-- name: ask_to_drain
WITH asked AS (
    SELECT about ->> 'name' AS name FROM nodes WHERE term = $1
), noted AS (
    INSERT INTO drains SELECT name FROM asked WHERE $2 ON CONFLICT DO NOTHING
), taken_back AS (
    DELETE FROM drains USING asked WHERE node = name AND NOT $2
)
SELECT name FROM asked;

-- name: end_drain
DELETE FROM drains WHERE node = (SELECT node FROM terms WHERE term = $1);

-- name: secret
SELECT value FROM secrets WHERE name = $1;

-- name: notify
SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS messages (channel, payload);

-- The same with mail, which most notifications do not need.
-- name: post
WITH posted AS (INSERT INTO mail (term, body) SELECT * FROM unnest($3::bigint[], $4::bytea[]))
SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS messages (channel, payload);

-- name: take_mail
DELETE FROM mail WHERE term = $1 RETURNING number, body;

-- name: forget_mail
DELETE FROM mail WHERE NOT EXISTS (SELECT FROM terms t WHERE t.term = mail.term AND NOT t.ended);

-- name: standbys
SELECT (SELECT count(*) FROM pg_stat_replication WHERE application_name <> 'pg_basebackup'),
    current_setting('synchronous_standby_names');
