"""Text of tasks, made safe for terminals and pages.

A line may contain anything that a task has read from elsewhere. Escape sequences would let it rewrite a reader's terminal, and
characters that change the direction of text would let it show something else than it says.
"""

from __future__ import annotations

import re
from typing import Final

_ESCAPES: Final = re.compile(
    "\x1b\\[[0-?]*[ -/]*[@-~]"  # CSI, such as colours
    "|\x1b[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)?"  # OSC and other strings, such as the title of a window
    "|\x1b[ -/]*[0-~]?"
    "|\x9b[0-?]*[ -/]*[@-~]"  # CSI in one character
)
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def clean(text: str) -> str:
    """Return a text without escape sequences; other control characters but line feeds and tabs become U+FFFD."""
    if _UNSAFE.search(text) is None:
        return text
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _UNSAFE.sub("\ufffd", text)


def cut(text: str, limit: int) -> str:
    """Return a text of at most about ``limit`` characters, with the number of missing ones in its middle."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}[… {len(text) - 2 * half} characters …]{text[-half:]}"
