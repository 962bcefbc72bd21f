"""A handler that writes records of `logging`, from users' code and libraries, to Mainspring's log.

Handlers that the user configures come first. A record that another handler has written is not written again, as with
`logging.lastResort` in a plain program.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from structlog.typing import Processor

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
