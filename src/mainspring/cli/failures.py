"""Exit codes and error lines of commands.

====  ================================================
0     done
1     the job or the command failed
2     wrong usage
3     no server
4     not found
5     timed out
====  ================================================
"""

from __future__ import annotations

import errno
import sys
from typing import TYPE_CHECKING

from mainspring.cli.display import printable
from mainspring.errors import (
    ConflictError,
    ConnectionLostError,
    ForbiddenError,
    JobLost,
    MainspringError,
    NoAnswerError,
    NotFoundError,
    RefusedError,
    ServerError,
    StoreBusyError,
    StoreCorruptError,
    StoreForeignError,
    StoreFullError,
    UsageError,
)

if TYPE_CHECKING:
    from typing import TextIO

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_SERVER = 3
EXIT_NOT_FOUND = 4
EXIT_TIMED_OUT = 5
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141

EXPECTED_ERRORS = (MainspringError, OSError, TimeoutError)
"""Errors that a command reports in one line. Any other exception is a defect and shows its traceback."""

_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (UsageError, EXIT_USAGE),
    (NotFoundError, EXIT_NOT_FOUND),
    (JobLost, EXIT_NOT_FOUND),
    (ForbiddenError, EXIT_FAILED),
    (ConflictError, EXIT_FAILED),
    (RefusedError, EXIT_FAILED),
    (NoAnswerError, EXIT_TIMED_OUT),
    (ConnectionLostError, EXIT_NO_SERVER),
    (ServerError, EXIT_NO_SERVER),
    (TimeoutError, EXIT_TIMED_OUT),
)

_USAGE_CODES = {"ARGUMENT_TOO_LARGE", "INVALID_ARGUMENTS", "INVALID_FUNCTION_NAME"}
"""Codes of a server's refusal for a request that is wrong in every state of the system."""

_ADVICE: tuple[tuple[type[BaseException], str], ...] = (
    (StoreFullError, "free some space and start again; no accepted job is lost"),
    (StoreBusyError, "stop the other node, or give this one another --store"),
    (StoreCorruptError, "restore a backup (see mainspring backup), or start with another --store"),
    (StoreForeignError, "give another --store"),
)

_ADVICE_SIGNS = ("; ", "--store", "mainspring import")
"""A message with one of these already contains advice."""

_NO_SERVER_ADVICE = "start one with: mainspring serve, or name it with --server or MAINSPRING_SERVER"

_OTHER_SERVER_ADVICE = "name the Gearman port of a Mainspring server with --server or MAINSPRING_SERVER"
"""For a gearmand, the HTTP port of a node, or another program that listens on the address."""

_SYSTEM = {
    errno.EACCES: "permission denied; run as a user with the permission, or change the permissions of the file",
    errno.EPERM: "permission denied; run as a user with the permission",
    errno.ENOENT: "no such file or directory; check the path",
    errno.ENOSPC: "no space is left on the device; free some and start again",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.EISDIR: "it is a directory; name a file",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
}


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error."""
    if isinstance(error, RefusedError) and error.code in _USAGE_CODES:
        return EXIT_USAGE
    return next((code for kind, code in _CODES if isinstance(error, kind)), EXIT_FAILED)


def explain(error: BaseException) -> str:
    """Return one line with the problem and the remedy."""
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        reason = _SYSTEM.get(error.errno or 0, error.strerror or str(error) or type(error).__name__)
        return f"{error.filename}: {reason}" if error.filename else reason
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ConnectionLostError) and text.endswith("and did not answer"):
        return f"{text}: it hangs, or is not a Mainspring server; {_OTHER_SERVER_ADVICE}"
    if isinstance(error, ConnectionLostError):
        return f"{text}; {_NO_SERVER_ADVICE}" if text.startswith("no server") and "--tls-" not in text else text
    if isinstance(error, ServerError) and text.startswith("the server does not support"):
        return f"{text}; {_OTHER_SERVER_ADVICE}"
    advice = next((advice for kind, advice in _ADVICE if isinstance(error, kind)), None)
    if advice is None or any(sign in text for sign in _ADVICE_SIGNS):
        return text
    return f"{text}; {advice}"


def print_error(text: str, *, stream: TextIO | None = None) -> None:
    """Write an error line, with control characters escaped: parts of the text may come from clients and workers."""
    print(f"mainspring: {printable(text)}", file=sys.stderr if stream is None else stream, flush=True)
