"""Suggestions for a misspelt name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> str:
    """Return a question that begins with a semicolon and names the nearest known words; empty where none is near.

    ``cutoff``, from 0 to 1, is how like the word they are at least.
    """
    close = [repr(name) for name in difflib.get_close_matches(word, known, n=most, cutoff=cutoff)]
    if not close:
        return ""
    *others, last = close
    before = f"{', '.join(others)} or " if others else ""
    return f"; did you mean {before}{last}?"
