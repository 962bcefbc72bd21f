"""10. Django: a job for committed data."""
