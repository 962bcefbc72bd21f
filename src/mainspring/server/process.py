"""The process as the operating system sees it: background, user, open files, pid file.

The order is: `raise_limits`, `Detachment` (it forks, so nothing may have been started), `PidFile`, `switch_user`, then
the node. The pid file is written by whoever may write it, before rights are given up.
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
from mainspring.private_files import open_own, why

SPARE_FILES = 32
"""Open files that are no connection of a client or worker: those to come of the store, of HTTP and of child processes."""


def raise_limits(max_files: int | None, *, core_dumps: bool) -> None:
    """Allow as many open files as wanted, or as the hard limit has; and core files where they are wanted.

    Raises SettingsError where more is wanted than this user may have.
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
    if core_dumps:
        _, hard_core = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (hard_core, hard_core))


def room_for_connections(others: int = 0) -> int:
    """Return how many connections may be open beside the files that this process needs itself; 0: there is no limit.

    ``others``: descriptors that are kept for other ports. One connection more would be accepted and ended by the event loop
    without a word to anybody.
    """
    allowed = open_files()
    if allowed is None:
        return 0
    free = allowed - others - sum(1 for _ in Path("/dev/fd").iterdir())
    return max(1, free // 2, free - SPARE_FILES)


def open_files() -> int | None:
    """Return how many files this process may have open; None: there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def switch_user(name: str) -> None:
    """Become another user, with that user's groups.

    Raises SettingsError for a user that does not exist, or where this one may not.
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


class PidFile:
    """A file that holds the process id while the context lasts."""

    def __init__(self, path: Path, *, owner: str | None = None) -> None:
        self._path = path
        self._owner = owner
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Write the file, as of ``owner`` so that it can be removed after the rights are gone."""
        try:
            self._descriptor = open_own(self._path)
            os.truncate(self._descriptor, 0)
            os.write(self._descriptor, b"%d\n" % os.getpid())
            if self._owner is not None and os.geteuid() == 0:
                os.chown(self._descriptor, pwd.getpwnam(self._owner).pw_uid, -1)
        except KeyError:
            raise SettingsError(f"there is no user {self._owner!r} on this machine") from None
        except OSError as error:
            raise SettingsError(f"cannot write the pid file {self._path}: {why(error)}") from error
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the file, or empty it where its directory belongs to somebody else.

        What others have put in its place meanwhile is left alone: the file is the one that is open, whatever has its name.
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


class Detachment:
    """Runs the rest of the program in the background.

    The process that the user started waits until the one in the background says `ready`, so that its exit code is the
    truth and what it printed is on the user's terminal; from then on standard input, output and error are closed.
    """

    def __init__(self) -> None:
        """Fork twice; only the grandchild, which has no terminal, returns."""
        sys.stdout.flush()
        sys.stderr.flush()
        reader, self._writer = os.pipe()
        if os.fork() > 0:
            os.close(self._writer)
            _await_verdict(reader)
        os.close(reader)
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # sent to us when the session's leader, our parent, exits
        if os.fork() > 0:
            os._exit(0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def ready(self) -> None:
        """Let the waiting process end with 0, and leave the user's terminal alone."""
        sys.stdout.flush()
        sys.stderr.flush()
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        os.close(null)
        self._tell(0)

    def failed(self, code: int) -> None:
        """Let the waiting process end with an exit code; does nothing after `ready`."""
        self._tell(code)

    def _tell(self, code: int) -> None:
        if self._writer >= 0:
            os.write(self._writer, bytes([code]))
            os.close(self._writer)
            self._writer = -1


def _await_verdict(reader: int) -> None:
    """End this process with the code that the one in the background reports, or with 1 where it died without a word."""
    verdict = os.read(reader, 1)
    os._exit(verdict[0] if verdict else 1)
