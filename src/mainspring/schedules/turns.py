"""Which node tries first."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b


@lru_cache(maxsize=50_000)
def first_in_line(name: str, terms: tuple[int, ...]) -> int:
    """Return which of the nodes with these terms fires a schedule, where all of them live and see the same ones; 0 where none.

    It saves the others the trouble, no more: what keeps a fire time single is the store. Each node has about as many schedules,
    and one that comes or goes moves no others than its own (rendezvous hashing).
    """
    return min(terms, key=lambda term: (blake2b(f"{term}\0{name}".encode(), digest_size=8).digest(), term), default=0)
