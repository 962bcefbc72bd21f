"""Checks of the options that callers pass.

An error names the option, the accepted values, and the given value with its type. Callers without a type checker pass
anything, so all values are objects here.
"""

from __future__ import annotations

import reprlib
from math import isfinite
from operator import index
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mainspring.errors import UsageError
from mainspring.jobs.model import FUNCTION_LIMIT, UNIQUE_LIMIT
from mainspring.resources.limit_specs import key_of

if TYPE_CHECKING:
    from collections.abc import Callable

N = TypeVar("N")


def refusal(what: str, accepted: str, value: object) -> UsageError:
    """Return the error for a value that an option does not accept; ``accepted`` describes the values that it does."""
    return UsageError(f"{what} must be {accepted}; it is {reprlib.repr(value)} ({type(value).__name__})")


MAX_PROGRESS: Final = (1 << 63) - 1


MAX_PROGRESS_TEXT: Final = 256
"""Characters of the text of progress."""


def check_progress_text(text: object) -> str:
    """Return the text of a progress report.  Raises UsageError for other values, and for one that is too long."""
    checked = check_text(text, "the text of progress")
    if len(checked) > MAX_PROGRESS_TEXT:
        raise UsageError(
            f"the text of progress has {len(checked)} characters; at most {MAX_PROGRESS_TEXT} are shown: shorten it"
        )
    return checked


def check_progress(done: object, total: object) -> tuple[int, int]:
    """Return both numbers of a progress report.  Raises UsageError unless they are whole numbers from 0."""
    given: Any = done, total
    try:
        numbers = index(given[0]), index(given[1])
    except TypeError:
        raise UsageError(f"progress takes whole numbers; it was given {done!r} and {total!r}") from None
    if not all(0 <= number <= MAX_PROGRESS for number in numbers):
        raise UsageError(f"progress takes whole numbers from 0 to 2^63-1; it was given {done} and {total}")
    return numbers


def check_whole(value: object, what: str, least: int | None = None, most: int | None = None) -> None:
    """Raise UsageError unless the value is a whole number within these bounds."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or (least is not None and value < least)
        or (most is not None and value > most)
    ):
        lower = "" if least is None else f" from {least}"
        upper = "" if most is None else f" to {most}"
        raise refusal(what, f"a whole number{lower}{upper or (lower and ' on')}", value)


def check_number(value: object, what: str, accepted: str, least: float, most: float | None = None) -> None:
    """Raise UsageError unless the value is a finite number within these bounds; ``accepted`` describes them for the error."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value) or value < least:
        raise refusal(what, accepted, value)
    if most is not None and value > most:
        raise refusal(what, accepted, value)


def check_flag(value: object, what: str) -> None:
    """Raise UsageError unless the value is True or False."""
    if not isinstance(value, bool):
        raise refusal(what, "True or False", value)


def check_text(value: object, what: str, accepted: str = "text") -> str:
    """Return a text.  Raises UsageError for any other value, and for text that UTF-8 cannot encode."""
    if not isinstance(value, str):
        raise refusal(what, accepted, value)
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} cannot be encoded in UTF-8: {error}") from None
    return value


NAME_LIMIT: Final = 1024
"""Characters of a name or a reason in the history of a run: nodes take no more."""


def check_short(value: object, what: str, accepted: str = "text") -> str:
    """Return a name or a reason that the history of a run is to have.  Raises UsageError if it is not text or too long."""
    text = check_text(value, what, accepted)
    if len(text) > NAME_LIMIT:
        raise UsageError(f"{what} has {len(text):,} characters: give it at most {NAME_LIMIT:,}")
    return text


def check_name(name: object) -> None:
    """Raise UsageError unless the value can be the name of a function."""
    text = check_text(name, "name")
    if not text or "\0" in text or "\x1f" in text or len(text.encode()) > FUNCTION_LIMIT:
        raise UsageError(
            f"{text!r} is not a name for a function: use 1 to {FUNCTION_LIMIT} bytes without NUL and U+001F"
        )


def check_unique(value: object, what: str, accepted: str = "text") -> str:
    """Return a unique.  Raises UsageError if it is not text or too long."""
    unique = check_text(value, what, accepted)
    if (size := len(unique.encode())) > UNIQUE_LIMIT:
        raise UsageError(f"{what} has {size} bytes: give it at most {UNIQUE_LIMIT}")
    return unique


def check_key(value: object, what: str, accepted: str = "text") -> str:
    """Return a concurrency key.  Raises UsageError if it is not one."""
    key = check_text(value, what, accepted)
    key_of(key)
    return key


def check_text_or_function(value: N, what: str, check: Callable[[object, str, str], str]) -> N:
    """Return an option: a text, checked with ``check``, or a function that computes it from a job's arguments."""
    if not callable(value):
        check(value, what, "text, or a function that computes it from the arguments")
    return value


def _finite(number: Any) -> bool:
    try:
        return isfinite(number)
    except OverflowError:  # a whole number beyond the largest float
        return False
