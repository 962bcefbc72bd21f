"""Gearman's unique ``-``, which stands for the payload itself."""

from __future__ import annotations

import hashlib

_OF_PAYLOAD = b"-:"


def unique_of_payload(payload: bytes) -> bytes:
    """Return the unique that ``-`` stands for: a hash of the payload."""
    return _OF_PAYLOAD + hashlib.blake2b(payload, digest_size=16).hexdigest().encode()


def unique_of_empty_payload(number: int) -> bytes:
    """Return a distinct unique for ``-`` with an empty payload, because gearmand does not join such jobs."""
    return _OF_PAYLOAD + b"%032d" % number


def original_unique(unique: bytes) -> bytes:
    """Return a unique as its client sent it."""
    return b"-" if unique.startswith(_OF_PAYLOAD) and len(unique) == 34 else unique
