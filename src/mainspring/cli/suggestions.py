"""Suggestions for a misspelt name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(word: str, candidates: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> str:
    """Return a question that begins with a semicolon and names the most similar candidates; empty if none is similar.

    ``cutoff``, from 0 to 1, is the least similarity.
    """
    close = [repr(name) for name in difflib.get_close_matches(word, candidates, n=most, cutoff=cutoff)]
    if not close:
        return ""
    *others, last = close
    before = f"{', '.join(others)} or " if others else ""
    return f"; did you mean {before}{last}?"
