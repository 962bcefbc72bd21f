-- name: completions_with
SELECT version, content FROM completions WHERE digest = $1;

-- name: completions_of
SELECT version, content FROM completions WHERE job {among($1)};

-- name: due_completions
SELECT digest, look_us FROM completions ORDER BY look_us, digest LIMIT $1;

-- name: save_completion
INSERT INTO completions (digest, job, look_us, version, content) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (digest) DO UPDATE SET look_us = excluded.look_us, version = excluded.version, content = excluded.content;

-- name: begin_completion
UPDATE jobs SET expires_us = 0 WHERE id = $1 AND term = $2 AND state BETWEEN {leased} AND {running};

-- name: remove_completion
DELETE FROM completions WHERE digest = $1;
