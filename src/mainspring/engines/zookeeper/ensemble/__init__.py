"""Sessions with a real ensemble: kazoo, and what stands between it and the port."""
