-- Tokens, sessions of browsers and sign-in links. A secret itself is never stored.
CREATE TABLE credentials (
    digest BLOB PRIMARY KEY,                -- SHA-256 of the secret
    kind TEXT NOT NULL,                     -- mainspring.access.caller.Kind
    token TEXT NOT NULL,                    -- the token's id; of a session: its token's, or empty
    expires_us INTEGER NOT NULL,            -- 0: never
    used_us INTEGER NOT NULL,
    data BLOB NOT NULL                      -- MessagePack of mainspring.access.store.Credential
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX credential_tokens ON credentials (token) WHERE kind = 'ms_';
CREATE INDEX credential_sessions ON credentials (token) WHERE kind = 'mss_';
CREATE INDEX credential_ends ON credentials (expires_us) WHERE kind <> 'ms_';

CREATE TABLE revocations (number INTEGER NOT NULL) STRICT;
INSERT INTO revocations VALUES (0);

CREATE TABLE audit (
    number INTEGER PRIMARY KEY,
    at_us INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    what TEXT NOT NULL,
    act BLOB NOT NULL                       -- MessagePack of mainspring.access.audit.Act
) STRICT;
CREATE INDEX audit_times ON audit (at_us);
CREATE INDEX audit_whats ON audit (what, number);
CREATE INDEX audit_namespaces ON audit (namespace, number);
