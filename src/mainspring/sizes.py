"""The limits of what arrives from outside and is stored or shown: one table, from which the page *Limits* is checked.

A worker's or client's text is refused, or shortened where a refusal would lose the outcome of a job. Fields of requests have a
limit in their types (`Text`, `Texts`, `Whole`, `Time`), which `tests/security/test_sizes.py` requires of each of them.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Size(NamedTuple):
    """One limit."""

    most: int
    unit: str
    what: str
    then: str
    """`REFUSED` or `SHORTENED`."""


REFUSED: Final = "refused"
SHORTENED: Final = "shortened"

FAILURE_TYPE: Final = Size(200, "characters", "the type of a failure", SHORTENED)
FAILURE_TEXT: Final = Size(65_536, "characters", "the message of a failure, and its traceback", SHORTENED)
FAILURE_LINE: Final = Size(
    500, "characters", "the message of a failure in lists; a job's own view has all of it", SHORTENED
)
STORED_FAILURE: Final = Size(4_096, "bytes", "the part of a stored failure that a list reads", SHORTENED)

SIZES: Final = tuple(size for size in list(globals().values()) if isinstance(size, Size))
"""All limits."""

MARK: Final = "[… {} characters …]"


def shorten(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters; a longer one lacks its middle, with the number of its characters there."""
    if len(text) <= most:
        return text
    mark = MARK.format(len(text) - most + len(MARK) + 8)
    half = (most - len(mark)) // 2
    mark = MARK.format(len(text) - 2 * half)
    return f"{text[:half]}{mark}{text[-half:]}"
