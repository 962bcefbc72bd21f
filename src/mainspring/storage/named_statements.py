"""The statements in a ``.sql`` file of an engine, by their names."""

from __future__ import annotations

import re
from typing import Final

_ENTRY: Final = re.compile(r"^-- (name|part): (\w+)\n(.*?);\s*$", re.MULTILINE | re.DOTALL)
_PLACE: Final = re.compile(r"\{(\w+)\}")


def statements_of(text: str) -> dict[str, str]:
    """Return the statements of a file, by name. Each follows a line ``-- name: NAME``, and ends with a semicolon.

    A text after ``-- part: NAME`` replaces ``{NAME}`` in the statements. Raises KeyError for a part that the file does not have.
    A comment before such a line describes what follows.
    """
    entries: list[tuple[str, str, str]] = _ENTRY.findall(text)
    parts = {name: part for kind, name, part in entries if kind == "part"}
    return {
        name: _PLACE.sub(lambda place: parts[place[1]], statement)
        for kind, name, statement in entries
        if kind == "name"
    }
