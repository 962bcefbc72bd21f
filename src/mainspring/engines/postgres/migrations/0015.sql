-- compatible from: 7
-- Answers to requests with a key of their client, so that a repeated request gets the same answer.
CREATE TABLE replies (
    key bytea PRIMARY KEY,                  -- SHA-256 of the caller, the route and the client's key
    request bytea NOT NULL,                 -- SHA-256 of the request
    at_us bigint NOT NULL,
    reply bytea                             -- MessagePack of mainspring.access.idempotency.KeptReply; NULL: not answered
);
CREATE INDEX replies_old ON replies (at_us);
