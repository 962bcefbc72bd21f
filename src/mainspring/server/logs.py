"""The log: structured events as readable text or JSON lines, written to a stream, a file or the system's log.

Records of `logging`, from users' code and libraries, go to the same log.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import logging
import os
import re
import sys
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO, cast

import structlog

from mainspring.errors import SettingsError
from mainspring.private_data import hide_secrets, open_private
from mainspring.server.log_writer import OPEN_FLAGS, LogWriter, SyslogOutlet, UnblockedStream, outlet_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from structlog.typing import Processor

    from mainspring.server.log_writer import LogSettings, Outlet

STANDARD_LIBRARY: Final = frozenset({"asyncio", "concurrent", "multiprocessing"})
"""Packages of the standard library that log. Its other modules' names are common words that users give to their own loggers."""

_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
"""Directories of installed packages, in any Python."""


class StandardLogHandler(logging.Handler):
    """Renders records in the same format as the log's other lines, and writes them to the same place.

    The processors ``context`` run before the standard fields are added, those of ``rendering`` turn a line into text.
    """

    def __init__(
        self, writer: structlog.WriteLogger, context: Sequence[Processor], rendering: Sequence[Processor]
    ) -> None:
        super().__init__()
        self._writer = writer
        self.addFilter(self._is_ours)
        self.own: set[str] = set()
        """Top-level names of installed packages that are the user's own code."""
        self.setFormatter(
            structlog.stdlib.ProcessorFormatter(
                foreign_pre_chain=[
                    structlog.stdlib.ExtraAdder(),
                    structlog.stdlib.add_logger_name,
                    *context,
                    structlog.processors.add_log_level,
                    structlog.processors.TimeStamper(fmt="iso", utc=True),
                ],
                processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
            )
        )

    def _is_ours(self, record: logging.LogRecord) -> bool:
        """Skip records that other handlers write, and records of libraries below WARNING."""
        handled, chosen = _configured(record.name, self)
        return not handled and (record.levelno >= logging.WARNING or chosen or not self._is_library(record.name))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        try:
            self._writer.info(self.format(record))
        except structlog.DropEvent:
            pass
        except Exception:  # noqa: BLE001 - as in every handler: a record that cannot be written must not end its task
            self.handleError(record)

    def _is_library(self, name: str) -> bool:
        first = name.partition(".")[0]
        return first not in self.own and _is_library(first)


def _configured(name: str, handler: logging.Handler) -> tuple[bool, bool]:
    """Return whether another handler gets a logger's records, and whether its level was set explicitly."""
    root = logging.getLogger()
    found = root.manager.loggerDict.get(name)
    logger: logging.Logger | None = found if isinstance(found, logging.Logger) else root
    chosen = False
    while logger is not None:
        if any(other is not handler and not isinstance(other, logging.NullHandler) for other in logger.handlers):
            return True, chosen
        chosen = chosen or (logger is not root and logger.level != logging.NOTSET)
        logger = logger.parent if logger.propagate else None
    return False, chosen


@lru_cache(maxsize=1024)
def _is_library(first: str) -> bool:
    """Return whether a top-level name of loggers belongs to an installed package, not to the user's own code."""
    if first in STANDARD_LIBRARY:
        return True
    if first in sys.stdlib_module_names:
        return False
    spec = PathFinder.find_spec(
        first
    )  # only the default finder: another finder may log, which would call this function again
    if spec is None:
        return False
    places = [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or ())
    return any(not _INSTALLED.isdisjoint(Path(place).parts) for place in places)


def install(handler: StandardLogHandler, threshold: int) -> None:
    """Install a handler for records that no other handler writes, instead of an earlier one of its kind.

    ``threshold`` is the minimum level of users' records. An existing configuration stays as it is.
    """
    root = logging.getLogger()
    _uninstall()
    if not root.handlers:
        root.setLevel(threshold)
    root.addHandler(handler)


def _uninstall() -> StandardLogHandler | None:
    root = logging.getLogger()
    installed = None
    for handler in [handler for handler in root.handlers if isinstance(handler, StandardLogHandler)]:
        root.removeHandler(handler)
        installed = handler
    return installed


class _Unset(int):
    """A level that the user has not set, recognized by its identity."""


@contextlib.contextmanager
def importing(selector: str) -> Iterator[None]:
    """Let the import of a user's module in this block configure logging as in any program, and keep its configuration.

    ``selector`` is ``FILE.py[:name]`` or ``module[:name]``. Without an installed handler, the context does nothing.
    """
    handler = _uninstall()
    if handler is None:
        yield
        return
    root = logging.getLogger()
    place = selector.partition(":")[0]
    if not place.endswith(".py") and "/" not in place:
        handler.own.add(place.partition(".")[0])
    # `logging.basicConfig` does nothing if the root has a handler, so meanwhile the handler is the last resort.
    level = _Unset(root.level)
    root.setLevel(level)
    last, logging.lastResort = logging.lastResort, handler
    try:
        yield
    finally:
        logging.lastResort = last
        if root.handlers and root.level is level:
            root.setLevel(logging.WARNING)  # as in a plain program: the user has chosen handlers and no level
        root.addHandler(handler)


_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class LogSink(Protocol):
    """A destination of log lines."""

    def write(self, text: str, /) -> object:
        """Write one or more whole lines."""

    def flush(self) -> None:
        """Pass everything to the operating system."""

    def reopen(self) -> None:
        """Reopen the file after log rotation has moved it; a stream does nothing."""

    def close(self) -> None:
        """Close the file; a stream does nothing."""


class StreamSink:
    """Writes lines to a stream that an embedding program or a test has given."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str, /) -> None:
        """Write one or more whole lines; errors of a closed stream are ignored."""
        try:
            self._stream.write(text)
        except (OSError, ValueError):
            pass

    def flush(self) -> None:
        """Pass everything to the operating system."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            pass

    def reopen(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class WriterSink:
    """Passes lines to a writer, which never blocks the thread that logs."""

    def __init__(self, writer: LogWriter) -> None:
        self.writer = writer

    def write(self, text: str, /) -> None:
        """Write one or more whole lines."""
        self.writer.write(text.encode("utf-8", "backslashreplace"))

    def flush(self) -> None:
        """Do nothing: lines that can be written now are written, and the others must not delay the thread."""

    def reopen(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class FileSink(WriterSink):
    """Appends lines to a file, which log rotation may move."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()  # user code may change the working directory later
        super().__init__(LogWriter(self._open()))

    def reopen(self) -> None:
        """Reopen the path; if that fails, keep the old file in use and log a warning there."""
        try:
            self._reopen()
        except SettingsError:
            structlog.get_logger(__name__).warning("log file cannot be reopened", path=str(self._path))

    def close(self) -> None:
        """Close the file."""
        self.writer.close()

    def _reopen(self) -> None:
        self.writer.replace(self._open())

    def _open(self) -> Outlet:
        try:
            # This follows links: a log may be on another disk, or be /dev/stdout.
            self._descriptor = open_private(self._path, OPEN_FLAGS | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            reason = "no process reads it" if error.errno == errno.ENXIO else error.strerror
            raise SettingsError(f"cannot open the log file {self._path}: {reason}") from error
        return outlet_of(self._descriptor, owned=True)


class FollowedFileSink(FileSink):
    """Appends lines to a file, and reopens it before a write if it was moved."""

    def write(self, text: str, /) -> None:
        """Write one or more whole lines."""
        try:
            moved = not os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except OSError:
            moved = True
        if moved:
            with contextlib.suppress(SettingsError):  # the old file stays in use; a log line here would recurse
                self._reopen()
        super().write(text)


def start_logging(
    settings: LogSettings,
    *,
    stream: TextIO | None = None,
    context: Sequence[structlog.typing.Processor] = (),
    follow: bool = False,
) -> LogSink:
    """Configure logging by the settings, and return the sink.

    ``context`` are processors that add to every line. ``follow`` reopens a moved log file at the next line, for processes
    that get no signal after a rotation. Raises SettingsError if the file cannot be opened.
    """
    stream = sys.stderr if stream is None else stream
    sink = _open_sink(settings, stream, follow=follow)
    threshold = logging.getLevelName(settings.level.upper())
    assert isinstance(threshold, int), settings.level
    rendering = _rendering(settings, stream)
    context = [*([] if settings.enabled else [_drop]), structlog.contextvars.merge_contextvars, *context]
    out = structlog.WriteLoggerFactory(cast("TextIO", sink))  # the factory only writes and flushes
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
    install(StandardLogHandler(out(), context, rendering), threshold)
    if isinstance(sink, WriterSink):
        sink.writer.count_with(functools.partial(_notice, rendering))
    return sink


def _notice(rendering: Sequence[structlog.typing.Processor], lines: int) -> str:
    """Return the line that stands for a number of dropped lines."""
    event: Any = {
        "event": "lines of this log were dropped, because nothing read them",
        "lines": lines,
        "level": "warning",
    }
    event = structlog.processors.TimeStamper(fmt="iso", utc=True)(None, "warning", event)
    for processor in rendering:
        event = processor(None, "warning", event)
    return f"{event}\n"


def _open_sink(settings: LogSettings, stream: TextIO, *, follow: bool) -> LogSink:
    if settings.syslog:
        return WriterSink(LogWriter(SyslogOutlet()))
    if settings.file is None:
        return WriterSink(stream.writer) if isinstance(stream, UnblockedStream) else StreamSink(stream)
    return FollowedFileSink(settings.file) if follow else FileSink(settings.file)


def _rendering(settings: LogSettings, stream: TextIO) -> list[structlog.typing.Processor]:
    on_terminal = settings.file is None and not settings.syslog and stream.isatty()
    if settings.format == "json" or (settings.format == "auto" and not on_terminal):
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(), _hide]
    readable = structlog.dev.ConsoleRenderer(colors=on_terminal, exception_formatter=_write_traceback)
    return [_show_controls, readable, _hide]


def _hide(_logger: object, _method: str, line: Any) -> str:
    """Hide tokens in a whole line: in its event, its values and its traceback."""
    return hide_secrets(line)


def _shown(text: str) -> str:
    """Return a text with escapes for characters that could rewrite a terminal or the direction of its text."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _show_controls(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {name: _shown(value) if isinstance(value, str) else value for name, value in event.items()}


def _write_traceback(out: TextIO, error: structlog.typing.ExcInfo) -> None:
    """Write a plain traceback: a pretty one shows local variables, which may hold payloads."""
    text = io.StringIO()
    structlog.dev.plain_traceback(text, error)
    out.write(_shown(text.getvalue()))


def _drop(_logger: object, _method: str, _event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    raise structlog.DropEvent
