"""10. Django: a job for what a transaction has committed."""
