"""What the unique ``-`` stands for in Gearman: the payload itself."""

from __future__ import annotations

import hashlib

_OF_PAYLOAD = b"-:"


def unique_of_payload(payload: bytes) -> bytes:
    """Return the unique that ``-`` stands for: the payload's own."""
    return _OF_PAYLOAD + hashlib.blake2b(payload, digest_size=16).hexdigest().encode()


def unique_of_nothing(number: int) -> bytes:
    """Return the unique that ``-`` stands for where there is no payload: one of its own, for gearmand joins no such jobs."""
    return _OF_PAYLOAD + b"%032d" % number


def said_unique(unique: bytes) -> bytes:
    """Return a unique as its client said it."""
    return b"-" if unique.startswith(_OF_PAYLOAD) and len(unique) == 34 else unique
