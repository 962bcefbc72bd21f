"""What a command's exit code and its one line of error say.

====  ================================================
0     done
1     the job failed, or the command could not be done
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
    JobLost,
    MainspringError,
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

DONE = 0
FAILED = 1
USAGE = 2
NO_SERVER = 3
NOT_FOUND = 4
TIMED_OUT = 5
INTERRUPTED = 130
PIPE_CLOSED = 141

EXPECTED = (MainspringError, OSError, TimeoutError)
"""What is answered with one line; anything else is a defect and shows its traceback."""

_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (UsageError, USAGE),
    (NotFoundError, NOT_FOUND),
    (JobLost, NOT_FOUND),
    (ConflictError, FAILED),
    (RefusedError, FAILED),
    (ConnectionLostError, NO_SERVER),
    (ServerError, NO_SERVER),
    (TimeoutError, TIMED_OUT),
)

_USAGE_CODES = {"ARGUMENT_TOO_LARGE", "INVALID_ARGUMENTS", "INVALID_FUNCTION_NAME"}
"""Codes of a server's refusal that say: whatever the state of things, this cannot be asked."""

_ADVICE: tuple[tuple[type[BaseException], str], ...] = (
    (StoreFullError, "free some space and start again; nothing that was accepted is lost"),
    (StoreBusyError, "stop the other node, or give this one another --store"),
    (StoreCorruptError, "restore a backup (mainspring backup makes them), or start with another --store"),
    (StoreForeignError, "give another --store"),
)

_ADVICE_SIGNS = ("; ", "--store", "mainspring import")
"""Whoever raised the error has said already what to do."""

_NO_SERVER_ADVICE = "start one with: mainspring serve, or name it with --server or MAINSPRING_SERVER"

_OTHER_SERVER_ADVICE = "name the Gearman port of a Mainspring server with --server or MAINSPRING_SERVER"
"""For a gearmand, the HTTP port of a node, or whatever else listens there."""

_SYSTEM = {
    errno.EACCES: "permission denied; run as a user who may, or change the file's rights",
    errno.EPERM: "permission denied; run as a user who may",
    errno.ENOENT: "no such file or directory; check the path",
    errno.ENOSPC: "no space is left on the device; free some and start again",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.EISDIR: "it is a directory; name a file",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
}


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error."""
    if isinstance(error, RefusedError) and error.code in _USAGE_CODES:
        return USAGE
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def explain(error: BaseException) -> str:
    """Say in one line what was wrong, and what to do about it."""
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        reason = _SYSTEM.get(error.errno or 0, error.strerror or str(error) or type(error).__name__)
        return f"{error.filename}: {reason}" if error.filename else reason
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ConnectionLostError) and text.endswith("and did not answer"):
        return f"{text}: it hangs, or is none of Mainspring's; {_OTHER_SERVER_ADVICE}"
    if isinstance(error, ConnectionLostError):
        return f"{text}; {_NO_SERVER_ADVICE}" if text.startswith("no server") and "--tls-" not in text else text
    if isinstance(error, ServerError) and text.startswith("the server does not support"):
        return f"{text}; {_OTHER_SERVER_ADVICE}"
    advice = next((advice for kind, advice in _ADVICE if isinstance(error, kind)), None)
    if advice is None or any(sign in text for sign in _ADVICE_SIGNS):
        return text
    return f"{text}; {advice}"


def complain(text: str, *, stream: TextIO | None = None) -> None:
    """Write one line about what was wrong; what others put into it cannot command the terminal."""
    print(f"mainspring: {printable(text)}", file=sys.stderr if stream is None else stream, flush=True)
