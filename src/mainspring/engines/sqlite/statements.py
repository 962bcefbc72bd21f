"""The named statements of the files with the ending ``.sql``."""

from __future__ import annotations

from importlib.resources import files

from mainspring.storage.engine import statements_of

SQL_FILES = (
    "statements.sql",
    "schedules.sql",
    "resources.sql",
    "workflows.sql",
    "logs.sql",
    "series.sql",
    "access.sql",
    "replies.sql",
    "bulk.sql",
)
SQL = statements_of("\n".join(files(__package__).joinpath(name).read_text("utf-8") for name in SQL_FILES))
"""The statements by name."""
