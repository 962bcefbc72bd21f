"""Results of jobs in JSON."""

from __future__ import annotations

import base64

import msgspec


def decoded(data: bytes) -> tuple[str, msgspec.Raw | str | None]:
    """Return a result's encoding, and the result in it: ``json`` (null where it is empty), ``text`` or ``base64``."""
    if not data:
        return "json", None
    try:
        whole = data.decode()
    except UnicodeDecodeError:
        return "base64", base64.b64encode(data).decode()
    try:
        # Not decoded and encoded: that would round numbers.
        return "json", msgspec.Raw(msgspec.json.format(data, indent=-1))
    except (msgspec.DecodeError, RecursionError):  # RecursionError: nested too deeply, for readers as well
        return "text", whole
