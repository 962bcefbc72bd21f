"""The named statements of ``statements.sql``."""

from __future__ import annotations

import re
from importlib.resources import files

_NAMED = re.compile(r"^-- name: (\w+)\n(.*?);\s*$", re.MULTILINE | re.DOTALL)


def _load() -> dict[str, str]:
    text = files(__package__).joinpath("statements.sql").read_text("utf-8")
    return {name: statement for name, statement in _NAMED.findall(text)}  # noqa: C416 - pairs of Any


SQL = _load()
"""Name to statement."""
