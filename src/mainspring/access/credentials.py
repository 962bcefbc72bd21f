"""Secrets of tokens, sessions and sign-in links, as one word each: a prefix, 32 random bytes and their checksum.

A store has only the SHA-256 of the word. The checksum lets a node refuse a mistyped or invented word without a look-up, and lets
scanners of source code find leaked ones: ``ms[sl]?_[A-Za-z0-9_-]{48}``.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from enum import StrEnum
from typing import Final

SECRET_BYTES: Final = 32


class Kind(StrEnum):
    """The purpose of a secret, which is also its prefix. No secret is valid for another purpose."""

    TOKEN = "ms_"  # noqa: S105 - a prefix
    SESSION = "mss_"
    """The cookie of a browser."""
    LINK = "msl_"
    """Signs in once."""


_BODY: Final = re.compile(r"[A-Za-z0-9_-]{48}")


def secret_of(kind: Kind, random: bytes) -> str:
    """Return a secret with 32 random bytes."""
    assert len(random) == SECRET_BYTES
    return kind + base64.urlsafe_b64encode(random + _checksum(kind, random)).decode()


def digest_of(kind: Kind, text: str) -> bytes | None:
    """Return the SHA-256 of a secret, under which a store has it; None if the text is no secret of this kind."""
    body = text.removeprefix(kind)
    if not text.startswith(kind) or not _BODY.fullmatch(body):
        return None
    raw = base64.urlsafe_b64decode(body)
    if _checksum(kind, raw[:SECRET_BYTES]) != raw[SECRET_BYTES:]:
        return None
    return hashlib.sha256(text.encode()).digest()


def _checksum(kind: Kind, random: bytes) -> bytes:
    return zlib.crc32(kind.encode() + random).to_bytes(4, "big")
