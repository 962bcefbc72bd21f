"""Sessions with a real ensemble: the port ``Tree`` on kazoo."""
