"""The log of a job: the lines that tasks write, as they are sent to the server."""

from __future__ import annotations

import math
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    Value = str | int | float | bool | None
    Raised = (
        BaseException
        | tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None]
        | bool
        | None
    )

MAX_MESSAGE: Final = 16_384
"""Characters of a message that are sent; of a longer one, the middle is left out."""
MAX_VALUE: Final = 1024
MAX_FIELDS: Final = 32


_BEGIN_NS: Final = time.time_ns() - time.monotonic_ns()


def line_time_us() -> int:
    """Return the time for a line, in microseconds since 1970, by the monotonic clock: the wall clock may be set meanwhile.

    Servers change it to theirs, since this process may have begun with a wrong wall clock.
    """
    return (_BEGIN_NS + time.monotonic_ns()) // 1000


class LogLine(msgspec.Struct, array_like=True):
    """A line as it is sent: time (`line_time_us`), level from 0 (debug) to 4 (critical), logger, message, fields."""

    at_us: int
    level: int
    logger: str
    message: str
    fields: dict[str, str | int | float | bool | None] | None = None

    @property
    def size(self) -> int:
        """Return about how many bytes it has."""
        return 48 + len(self.message) + len(self.logger) + (64 * len(self.fields) if self.fields else 0)


class JobLog:
    """The log of a job: its lines are stored with the job, where ``mainspring jobs logs`` shows them.

    A message may have ``%`` placeholders with arguments, as in `logging`; keyword arguments are fields. No method raises an error
    or waits.
    """

    __slots__ = ("_fields", "_write_line")

    def __init__(self, write_line: Callable[[LogLine], None], fields: Mapping[str, Any] | None = None) -> None:
        self._write_line = write_line
        self._fields = dict(fields or {})

    def bind(self, **fields: Any) -> JobLog:
        """Return a log that adds fields to each line."""
        return JobLog(self._write_line, {**self._fields, **fields})

    def debug(self, message: object, /, *args: object, **fields: Any) -> None:
        """Log a line for developers."""
        self._write(0, message, args, fields)

    def info(self, message: object, /, *args: object, **fields: Any) -> None:
        """Log a line about the normal course of the job."""
        self._write(1, message, args, fields)

    def warning(self, message: object, /, *args: object, **fields: Any) -> None:
        """Log a line about something unexpected."""
        self._write(2, message, args, fields)

    def error(self, message: object, /, *args: object, **fields: Any) -> None:
        """Log a line about a failure."""
        self._write(3, message, args, fields)

    def exception(self, message: object, /, *args: object, **fields: Any) -> None:
        """Log a line about a failure, with the traceback of the exception that is being handled."""
        fields.setdefault("exc_info", True)
        self._write(3, message, args, fields)

    def critical(self, message: object, /, *args: object, **fields: Any) -> None:
        """Log a line about a failure of more than this job."""
        self._write(4, message, args, fields)

    def log(self, level: int, message: object, /, *args: object, **fields: Any) -> None:
        """Log a line with a level of `logging`."""
        self._write(index_of(level), message, args, fields)

    def _write(self, level: int, message: object, args: tuple[object, ...], fields: dict[str, Any]) -> None:
        raised: Raised = fields.pop("exc_info", None)
        text = formatted(message, args)
        if raised:
            text += traceback_of(raised)
        values = dict(values_of({**self._fields, **fields})) if fields or self._fields else None
        self._write_line(LogLine(line_time_us(), level, "", shorten(text), values))


def index_of(level: int) -> int:
    """Return the index of a level of `logging`."""
    return min(max(level // 10 - 1, 0), 4)


def formatted(message: object, args: Any) -> str:
    """Return a message with its arguments."""
    text = text_of(message)
    if not args:
        return text
    try:
        return str(text % args)
    except Exception:  # noqa: BLE001 - a wrong placeholder must not fail the job
        return f"{text} {text_of(args)}"


def traceback_of(raised: Raised) -> str:
    """Return the traceback of an error after a line feed; True stands for the error that is being handled."""
    try:
        if isinstance(raised, BaseException):
            lines = traceback.format_exception(raised)
        elif isinstance(raised, tuple):
            lines = traceback.format_exception(*raised) if raised[1] is not None else []
        else:
            lines = traceback.format_exc().splitlines(keepends=True)
    except Exception as worse:  # noqa: BLE001 - an error whose text cannot be formatted
        lines = [f"(the error cannot be shown: {type(worse).__name__})"]
    return "\n" + "".join(lines).rstrip("\n") if lines else ""


def text_of(value: object) -> str:
    """Return the text of any object."""
    try:
        text = str(value)
    except Exception as error:  # noqa: BLE001 - an object without a text must not fail the job
        text = f"(no text: {type(error).__name__})"
    return text.encode("utf-8", "backslashreplace").decode()


def values_of(fields: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    """Yield fields with values that can be sent; others are shown as ``repr`` shows them."""
    for number, (name, value) in enumerate(fields.items()):
        if number >= MAX_FIELDS:
            return
        yield text_of(name)[:255], _value(value)


def _value(value: object) -> Value:
    match value:
        case None | bool():
            return value
        case int() if -(2**63) <= value < 2**63:
            return int(value)
        case float() if math.isfinite(value):
            return float(value)
        case str():
            return shorten(text_of(value), MAX_VALUE)
        case _:
            try:
                text = repr(value)
            except Exception as error:  # noqa: BLE001
                text = f"(no text: {type(error).__name__})"
            return shorten(text_of(text), MAX_VALUE)


def shorten(text: str, limit: int = MAX_MESSAGE) -> str:
    """Return a text of at most about ``limit`` characters, without its middle if it is longer.

    UTF-8 can encode it: one line that it cannot would keep all lines of its batch from being sent.
    """
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}[… {len(text) - 2 * half} characters …]{text[-half:]}"
