"""The named statements of this package's ``.sql`` files."""

from __future__ import annotations

from importlib.resources import files

from mainspring.storage.named_statements import statements_of


def load(file: str) -> dict[str, str]:
    """Return the statements of a file, by name."""
    return statements_of(files(__package__).joinpath(file).read_text("utf-8"))
