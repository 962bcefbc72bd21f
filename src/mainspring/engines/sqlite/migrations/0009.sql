-- Open runs by their versions, so that a version is removed only if no run needs it.
CREATE INDEX runs_versions ON runs (namespace, type, version) WHERE status = 0;
