"""The store of a fleet, on PostgreSQL. It needs asyncpg: ``pip install 'mainspring[postgres]'``."""
