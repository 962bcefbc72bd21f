-- compatible from: 7
-- Tokens, sessions of browsers and sign-in links. A secret itself is never stored.
CREATE TABLE credentials (
    digest bytea PRIMARY KEY,                -- SHA-256 of the secret
    kind text COLLATE "C" NOT NULL,         -- mainspring.access.caller.Kind
    token text COLLATE "C" NOT NULL,        -- the token's id; of a session: its token's, or empty
    expires_us bigint NOT NULL,             -- 0: never
    used_us bigint NOT NULL,
    data bytea NOT NULL                     -- MessagePack of mainspring.access.store.Credential
);
CREATE UNIQUE INDEX credential_tokens ON credentials (token) WHERE kind = 'ms_';
CREATE INDEX credential_sessions ON credentials (token) WHERE kind = 'mss_';
CREATE INDEX credential_ends ON credentials (expires_us) WHERE kind <> 'ms_';

CREATE TABLE revocations (number bigint NOT NULL);
INSERT INTO revocations VALUES (0);

CREATE TABLE audit (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_us bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    namespace text COLLATE "C" NOT NULL,
    what text COLLATE "C" NOT NULL,
    act bytea NOT NULL                      -- MessagePack of mainspring.access.audit.Act
);
CREATE INDEX audit_times ON audit (at_us);
CREATE INDEX audit_whats ON audit (what, number);
CREATE INDEX audit_namespaces ON audit (namespace, number);
