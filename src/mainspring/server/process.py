"""The operating system's process: background, user, open files, pid file.

The order is: `raise_limits`, `DaemonProcess` (it forks, so no thread or loop may run yet), `PidFile`, `switch_user`, then
the node. The pid file is written before the process drops its rights.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import signal
import sys
from pathlib import Path
from typing import Self

from mainspring.errors import SettingsError
from mainspring.private_files import open_own, refusal_reason
from mainspring.server.log_writer import UnblockedStream

SPARE_FILES = 32
"""Open files kept free for the store, HTTP and child processes: they are not for connections of clients and workers."""


def raise_limits(max_files: int | None, *, core_dumps: bool) -> None:
    """Raise the limit of open files to ``max_files``, or to the hard limit, and allow core files, or forbid them.

    A core file would have the tokens, payloads and passwords in the memory of the process. Only the soft limit changes, so that
    an administrator can still allow one (``prlimit --core=unlimited --pid PID``).

    Raises SettingsError if the hard limit is lower and this user may not raise it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if max_files is None else max_files
    if wanted != soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard) if hard >= 0 else hard))
        except (ValueError, OSError) as error:
            raise SettingsError(
                f"cannot allow {wanted} open files: the limit is {hard} (ulimit -Hn; systemd's LimitNOFILE=)"
            ) from error
    _, hard_core = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard_core if core_dumps else 0, hard_core))


def room_for_connections(others: int = 0) -> int:
    """Return how many connections may be open beside the files that this process needs itself; 0: no limit.

    ``others`` descriptors are reserved for other ports. The event loop would accept further connections and close them
    without a log line.
    """
    allowed = open_files()
    if allowed is None:
        return 0
    free = allowed - others - sum(1 for _ in Path("/dev/fd").iterdir())
    return max(1, free // 2, free - SPARE_FILES)


def open_files() -> int | None:
    """Return how many files this process may have open; None: no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def switch_user(name: str) -> None:
    """Switch to another user and that user's groups, and set HOME, USER and LOGNAME.

    Raises SettingsError if the user does not exist, or if the process is not root's.
    """
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise SettingsError(f"there is no user {name!r} on this machine") from None
    if os.geteuid() == entry.pw_uid:
        return
    try:
        os.initgroups(name, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    except PermissionError as error:
        raise SettingsError(
            f"cannot switch to user {name!r}: only root may; start as root, or without this option"
        ) from error
    # As su does: libraries and tasks look there for configuration, such as ~/.pgpass.
    os.environ.update(HOME=entry.pw_dir, USER=name, LOGNAME=name)


class PidFile:
    """A context with a file that holds the process id."""

    def __init__(self, path: Path, *, owner: str | None = None) -> None:
        self._path = path
        self._owner = owner
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Write the file. It belongs to ``owner``, who can remove it after the process has dropped its rights."""
        try:
            self._descriptor = open_own(self._path)
            os.truncate(self._descriptor, 0)
            os.write(self._descriptor, b"%d\n" % os.getpid())
            if self._owner is not None and os.geteuid() == 0:
                os.chown(self._descriptor, pwd.getpwnam(self._owner).pw_uid, -1)
        except KeyError:
            raise SettingsError(f"there is no user {self._owner!r} on this machine") from None
        except OSError as error:
            raise SettingsError(f"cannot write the pid file {self._path}: {refusal_reason(error)}") from error
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the file, or empty it if the directory's permissions forbid its removal.

        A different file that now has this path is not touched: the descriptor identifies the right one.
        """
        try:
            if os.path.samestat(self._path.lstat(), os.fstat(self._descriptor)):
                self._path.unlink()
        except FileNotFoundError:
            pass
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(self._descriptor, 0)
        finally:
            os.close(self._descriptor)


class DaemonProcess:
    """Runs the rest of the program in the background.

    The process that the user started waits until the background process calls `ready` or `failed`. So its exit code is
    correct, and the user's terminal shows the output. `ready` closes standard input, output and error.
    """

    def __init__(self) -> None:
        """Fork twice; this returns only in the grandchild, which has no terminal."""
        sys.stdout.flush()
        sys.stderr.flush()
        reader, self._writer = os.pipe()
        if os.fork() > 0:
            os.close(self._writer)
            _exit_as_reported(reader)
        os.close(reader)
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # sent to us when the session's leader, our parent, exits
        if os.fork() > 0:
            os._exit(0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def ready(self) -> None:
        """Let the waiting process exit with 0, and close the user's terminal."""
        sys.stdout.flush()
        sys.stderr.flush()
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        os.close(null)
        if isinstance(sys.stderr, UnblockedStream):
            sys.stderr.follow()
        self._report(0)

    def failed(self, code: int) -> None:
        """Let the waiting process exit with a code; do nothing after `ready`."""
        self._report(code)

    def _report(self, code: int) -> None:
        if self._writer >= 0:
            os.write(self._writer, bytes([code]))
            os.close(self._writer)
            self._writer = -1


def _exit_as_reported(reader: int) -> None:
    """Exit with the code that the background process reports, or with 1 if it died before it reported one."""
    code = os.read(reader, 1)
    os._exit(code[0] if code else 1)
