"""Texts in which a token, a session or a sign-in link may stand by mistake: in a path, a name, a reason or an error.

The audit, logs and reported errors are read by more people than the secret is for, so these hide everything that has its form.
`mainspring.access.credentials` describes the form.
"""

from __future__ import annotations

import re
from typing import Any, Final

_SECRET: Final = re.compile(r"ms([sl]?)_[A-Za-z0-9_-]{48}")


def hide_secrets(text: str) -> str:
    """Return a text with ``ms_***`` in place of each secret. Hide before a text is cut: a part of a secret has not its form."""
    return _SECRET.sub(r"ms\1_***", text) if "ms" in text else text


def hide_in(value: Any) -> Any:
    """Return a value of JSON's types with all of its texts hidden, also those of keys."""
    if isinstance(value, str):
        return hide_secrets(value)
    if isinstance(value, dict):
        return {hide_in(key): hide_in(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [hide_in(one) for one in value]
    return value
