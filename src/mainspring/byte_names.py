r"""Names that are bytes on the wire and in stores (functions and uniques), as text in JSON, on pages and in commands.

Gearman's clients may name a function with any bytes. Each name has exactly one text, and each text that is not refused is that
of one name. Most names are UTF-8 and are their own text. A byte that is not UTF-8 is ``\xff``, in lower case; backslashes
directly before such a byte, or before characters that would read as one, are doubled. Other backslashes stay single, since
names such as ``App\Jobs\Send`` are common.
"""

from __future__ import annotations

import re
from typing import Final

from mainspring.errors import UsageError

_AMBIGUOUS: Final = re.compile("(\\\\+)(?=x[89a-f][0-9a-f]|[\udc80-\udcff])")
_BYTE: Final = re.compile("[\udc80-\udcff]")
_ESCAPE: Final = re.compile(r"(\\+)x([89a-f][0-9a-f])")


def name_text(name: bytes) -> str:
    """Return a name as text."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = name.decode("utf-8", "surrogateescape")
    else:
        if "\\x" not in text:
            return text
    return _BYTE.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:x}", _AMBIGUOUS.sub(r"\1\1", text))


def name_bytes(text: str) -> bytes:
    """Return the name that `name_text` shows as this text.

    Raises UsageError for a second spelling of a name: permissions are checked by text, so a name has one.
    """
    if "\\x" not in text:
        return text.encode()
    name = _ESCAPE.sub(_literal, text).encode("utf-8", "surrogateescape")
    if (shown := name_text(name)) != text:
        raise UsageError(
            f"the name {text} is spelled {shown}: only bytes that are not UTF-8 are written as \\x and two digits"
        )
    return name


def _literal(found: re.Match[str]) -> str:
    """Return the characters for an escape: a lone surrogate stands for a byte."""
    backslashes, digits = found.groups()
    kept = backslashes[: len(backslashes) // 2]
    return kept + (chr(0xDC00 + int(digits, 16)) if len(backslashes) % 2 else f"x{digits}")
