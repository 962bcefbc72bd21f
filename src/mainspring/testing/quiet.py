"""The log of the node and of the worker of a test: it goes to ``logging``, and not to standard output."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE: Final = "mainspring"
_lock = threading.Lock()
_blocks = 0
_before: Any = None
"""The factory of loggers before the first block, if structlog was configured: by `structlog.testing.capture_logs`, say."""


class _ToLogging:
    """A logger of structlog that passes rendered lines to the logger ``mainspring`` of ``logging``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(logging.getLogger(PACKAGE), name)


def _logger(*arguments: Any) -> Any:
    """Return the logger for ``structlog.get_logger(name)``: our own goes to ``logging``, others print as by default."""
    is_own = bool(arguments) and str(arguments[0]).partition(".")[0] == PACKAGE
    return _ToLogging() if is_own else structlog.PrintLogger()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Print no log in this block. pytest shows the lines of a failed test. A program with its own factory of loggers keeps it."""
    global _blocks, _before  # noqa: PLW0603 - structlog's configuration is the process's, and blocks may overlap
    with _lock:
        factory = structlog.get_config()["logger_factory"]
        is_ours = bool(_blocks) or type(factory) is structlog.PrintLoggerFactory
        if is_ours:
            if not _blocks:
                _before = factory if structlog.is_configured() else None
            _blocks += 1
            structlog.configure(logger_factory=_logger)
    try:
        yield
    finally:
        with _lock:
            if is_ours:
                _blocks -= 1
                if not _blocks and _before is None:
                    structlog.reset_defaults()
                elif not _blocks:
                    structlog.configure(logger_factory=_before)
