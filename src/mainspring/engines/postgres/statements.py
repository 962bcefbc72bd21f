"""The named statements of this package's ``.sql`` files."""

from __future__ import annotations

import re
from importlib.resources import files

_NAMED = re.compile(r"^-- name: (\w+)\n(.*?);\s*$", re.MULTILINE | re.DOTALL)


def load(file: str) -> dict[str, str]:
    """Return the statements of a file, by name. A comment before ``-- name:`` describes the statement that follows."""
    text = files(__package__).joinpath(file).read_text("utf-8")
    return {name: statement for name, statement in _NAMED.findall(text)}  # noqa: C416 - pairs of Any
