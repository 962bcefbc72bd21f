"""Rendezvous hashing: the node that fires a schedule first."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b


@lru_cache(maxsize=50_000)
def first_in_line(name: str, terms: tuple[int, ...]) -> int:
    """Return the term of the node that fires a schedule if all nodes see the same live terms; 0 without terms.

    This only saves duplicate work: the store ensures that a fire time is decided once. Each node gets about the same number of
    schedules, and a node that joins or leaves moves only its own.
    """
    return min(terms, key=lambda term: (blake2b(f"{term}\0{name}".encode(), digest_size=8).digest(), term), default=0)
