-- The runs that continue another one as new, by the root job of their chain. Most runs continue none, and are not in the index.
CREATE INDEX runs_links ON runs (root, id) WHERE id <> root;
