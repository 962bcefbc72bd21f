"""The named statements of the files with the ending ``.sql``."""

from __future__ import annotations

import re
from importlib.resources import files

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
_NAMED = re.compile(r"^-- name: (\w+)\n(.*?);\s*$", re.MULTILINE | re.DOTALL)


def _load() -> dict[str, str]:
    texts = [files(__package__).joinpath(name).read_text("utf-8") for name in SQL_FILES]
    return {name: statement for text in texts for name, statement in _NAMED.findall(text)}


SQL = _load()
"""The statements by name."""
