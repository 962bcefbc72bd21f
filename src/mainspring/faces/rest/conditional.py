"""Conditional requests: versions of answers, and writes that apply to one version only."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from mainspring.faces.rest.problems import HttpError

_TAG: Final = re.compile(r'(?:W/)?"([^"]*)"')
ANY: Final = "*"


def tag_of(body: bytes) -> bytes:
    """Return the ETag of a body."""
    return b'"%s"' % hashlib.blake2b(body, digest_size=12).hexdigest().encode()


def is_unchanged(if_none_match: bytes | None, tag: bytes) -> bool:
    """Return whether the client has this version."""
    if if_none_match is None:
        return False
    text = if_none_match.decode("latin-1").strip()
    return text == ANY or tag.decode("latin-1").strip('"') in _TAG.findall(text)


def required_version(if_match: bytes | None) -> str | None:
    """Return the version to which a write applies; None for any. Raises HttpError without a usable ``If-Match``."""
    if if_match is None:
        raise HttpError(
            "precondition_required", "this write needs If-Match with the ETag of the version that it changes, or *"
        )
    text = if_match.decode("latin-1").strip()
    if text == ANY:
        return None
    match = _TAG.fullmatch(text)
    if match is None:
        raise HttpError("malformed", "If-Match has one ETag in quotes, or *")
    return match[1]
