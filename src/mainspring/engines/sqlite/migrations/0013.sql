-- The tags of jobs. Most jobs have none, and no row here.
CREATE TABLE tags (
    namespace TEXT NOT NULL,
    tag       TEXT NOT NULL,
    job       INTEGER NOT NULL,
    PRIMARY KEY (namespace, tag, job)
) STRICT, WITHOUT ROWID;

CREATE INDEX tags_of_job ON tags (job);

-- Only jobs with options have tags. A job with the option `forget` has none, so no statement that counts its changes runs this.
CREATE TRIGGER untag AFTER DELETE ON jobs WHEN OLD.options IS NOT NULL BEGIN
    DELETE FROM tags WHERE job = OLD.id;
END;
