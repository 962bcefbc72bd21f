"""The log: structured events as text for people or as JSON lines, to a stream, a file or the system's log.

Modules ask for loggers with ``structlog.get_logger()``. What users' code and libraries write with `logging` goes the same way:
`mainspring.server.standard_logging`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import syslog
from typing import TYPE_CHECKING, Protocol, TextIO, cast

import structlog

from mainspring.errors import SettingsError
from mainspring.private_files import open_private
from mainspring.server.standard_logging import ToLog, install

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mainspring.server.settings import LogSettings


class LogSink(Protocol):
    """Where lines go."""

    def write(self, text: str, /) -> object:
        """Take one or more whole lines."""

    def flush(self) -> None:
        """Hand everything to the operating system."""

    def reopen(self) -> None:
        """Open the file again, after somebody has moved it away; does nothing for a stream."""

    def close(self) -> None:
        """Close the file; does nothing for a stream."""


class StreamSink:
    """Lines to a stream that is open for as long as the process lives."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str, /) -> None:
        """Take one or more whole lines; a reader that has gone away stops nothing."""
        try:
            self._stream.write(text)
        except (OSError, ValueError):
            pass

    def flush(self) -> None:
        """Hand everything to the operating system."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            pass

    def reopen(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class FileSink(StreamSink):
    """Lines appended to a file, which log rotation may move away."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(self._open())

    def reopen(self) -> None:
        """Open the path again and go on there; the old file stays in use where that fails."""
        try:
            self._open_again()
        except SettingsError:
            structlog.get_logger(__name__).warning("log file cannot be opened again", path=str(self._path))

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _open_again(self) -> None:
        fresh = self._open()
        old, self._stream = self._stream, fresh
        old.close()

    def _open(self) -> TextIO:
        try:
            # Links are followed: a log may be on another disk, or be /dev/stdout.
            return open(self._path, "a", encoding="utf-8", buffering=1, opener=open_private)
        except OSError as error:
            raise SettingsError(f"cannot open the log file {self._path}: {error.strerror}") from error


class FollowedFileSink(FileSink):
    """Lines appended to a file that is opened again by itself once it has been moved away."""

    def write(self, text: str, /) -> None:
        """Take one or more whole lines."""
        try:
            moved = not os.path.samestat(self._path.stat(), os.fstat(self._stream.fileno()))
        except OSError:
            moved = True
        if moved:
            with contextlib.suppress(SettingsError):  # nobody can be told here: the old file stays in use
                self._open_again()
        super().write(text)


class SyslogSink:
    """Lines to the system's log."""

    def __init__(self) -> None:
        syslog.openlog("mainspring", syslog.LOG_PID, syslog.LOG_DAEMON)

    def write(self, text: str, /) -> None:
        """Take one or more whole lines."""
        for line in text.splitlines():
            syslog.syslog(line)

    def flush(self) -> None:
        """Do nothing: each line is sent at once."""

    def reopen(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def start_logging(
    settings: LogSettings,
    *,
    stream: TextIO | None = None,
    context: Sequence[structlog.typing.Processor] = (),
    follow: bool = False,
) -> LogSink:
    """Send everything that is logged from now on where the settings say, and return the sink.

    ``context`` are processors that add to every line. ``follow``: a log file that is moved away is opened again at the next
    line, in a process that gets no signal for it. Raises SettingsError where the file cannot be opened.
    """
    stream = sys.stderr if stream is None else stream
    sink = _open_sink(settings, stream, follow=follow)
    threshold = logging.getLevelName(settings.level.upper())
    assert isinstance(threshold, int), settings.level
    rendering = _rendering(settings, stream)
    context = [*([] if settings.enabled else [_drop]), structlog.contextvars.merge_contextvars, *context]
    out = structlog.WriteLoggerFactory(cast(TextIO, sink))  # it writes and flushes, no more
    structlog.configure(
        processors=[
            *context,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=out,
        cache_logger_on_first_use=False,
    )
    install(ToLog(out(), context, rendering), threshold)
    return sink


def _open_sink(settings: LogSettings, stream: TextIO, *, follow: bool) -> LogSink:
    if settings.syslog:
        return SyslogSink()
    if settings.file is None:
        return StreamSink(stream)
    return FollowedFileSink(settings.file) if follow else FileSink(settings.file)


def _rendering(settings: LogSettings, stream: TextIO) -> list[structlog.typing.Processor]:
    on_terminal = settings.file is None and not settings.syslog and stream.isatty()
    if settings.format == "json" or (settings.format == "auto" and not on_terminal):
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    # Plain tracebacks: the pretty ones show local variables, and those hold payloads.
    return [structlog.dev.ConsoleRenderer(colors=on_terminal, exception_formatter=structlog.dev.plain_traceback)]


def _drop(_logger: object, _method: str, _event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    raise structlog.DropEvent
