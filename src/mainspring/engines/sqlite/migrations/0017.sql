-- Answers to requests with a key of their client, so that a repeated request gets the same answer.
CREATE TABLE replies (
    key BLOB PRIMARY KEY,                   -- SHA-256 of the caller, the route and the client's key
    request BLOB NOT NULL,                  -- SHA-256 of the request
    at_us INTEGER NOT NULL,
    reply BLOB                              -- MessagePack of mainspring.access.idempotency.KeptReply; NULL: not answered
) STRICT, WITHOUT ROWID;
CREATE INDEX replies_old ON replies (at_us);
