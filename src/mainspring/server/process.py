"""The operating system's process: background, user, open files, pid file, limits of connections, and the signals that stop it.

The order is: `raise_limits`, `DaemonProcess` (it forks, so no thread or loop may run yet), `PidFile`, `switch_user`, then the
node. The pid file is written before the process drops its rights. The ports divide the process's descriptors, so that a flood
of one leaves the others theirs.

====================  ==================================================================
first SIGTERM         graceful: running jobs get the grace period, then they are released
another SIGTERM       no further effect
first SIGINT          the same as the first SIGTERM
SIGINT during a stop  immediate: running jobs are released at once
====================  ==================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

import structlog

from mainspring.errors import SettingsError
from mainspring.private_data import open_own, refusal_reason
from mainspring.quantities import spell_duration
from mainspring.server.log_writer import UnblockedStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.server.log_writer import LogSettings
    from mainspring.server.settings import ServerSettings

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


MAX_HTTP: Final = 1024
"""Connections of the HTTP port."""
MAX_GEARMAN_HTTP: Final = 1024
"""Connections of gearmand's MAX_HTTP protocol, whose requests last as long as their jobs."""
MAX_HANDSHAKES: Final = 256
"""TLS handshakes under way on Gearman's ports."""
MIN_CONNECTIONS: Final = 8
"""Connections that each socket gets even if the limit of open files is low."""


class ConnectionLimits(NamedTuple):
    """Maximum of simultaneous connections for each port; 0 for a port that the node does not have."""

    http: int
    gearman_http: int
    handshakes: int
    gearman: int
    """0: no limit."""


def connection_limits(settings: ServerSettings) -> ConnectionLimits:
    """Return the limits of a node's ports. Call it when the node's other files are open: it counts open descriptors."""
    listen = settings.listen
    each = 1 if listen.tls is None else 2  # a handshake keeps a second descriptor, to send the reason if it fails
    allowed = open_files()

    def share(most: int, *, wanted: bool) -> int:
        if not wanted:
            return 0
        return most if allowed is None else max(MIN_CONNECTIONS, min(most, allowed // 8 // each))

    http = share(MAX_HTTP, wanted=listen.http is not None)
    gearman_http = share(MAX_GEARMAN_HTTP, wanted=listen.gearman_http is not None)
    handshakes = share(MAX_HANDSHAKES, wanted=listen.tls is not None)
    room = room_for_connections(each * (http + gearman_http + handshakes))
    most = settings.limits.max_connections
    return ConnectionLimits(http, gearman_http, handshakes, min(most, room) if most and room else most or room)


class Stoppable(Protocol):
    """A node, a worker, or a supervisor of workers."""

    def stop(self) -> None:
        """Stop gracefully; do nothing during a stop."""

    def interrupt(self) -> None:
        """Stop gracefully; during a stop: stop immediately."""


@contextlib.contextmanager
def stop_signals(target: Stoppable) -> Iterator[None]:
    """Stop ``target`` at SIGTERM and SIGINT inside this block; use it on the event loop of the main thread."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as signals:
        for number, function in ((signal.SIGTERM, target.stop), (signal.SIGINT, target.interrupt)):
            loop.add_signal_handler(number, function)
            signals.callback(loop.remove_signal_handler, number)
        yield


class ReportedStop:
    """Stops a target; calls ``waits`` when the stop begins and ``hurries`` when it becomes immediate, each once."""

    def __init__(self, target: Stoppable, waits: Callable[[], None], hurries: Callable[[], None]) -> None:
        self._target = target
        self._reports = [hurries, waits]

    def stop(self) -> None:
        """Stop gracefully; do nothing during a stop."""
        self._target.stop()
        self._report(2)

    def interrupt(self) -> None:
        """Stop gracefully; during a stop: stop immediately."""
        self._target.interrupt()
        self._report(1)

    def _report(self, least: int) -> None:
        if len(self._reports) >= least:
            self._reports.pop()()


def show_message(log: LogSettings, sentence: str, **figures: object) -> None:
    """Show a message as plain text on a terminal; log it if there is no terminal, or if the log is not the terminal."""
    on_terminal = sys.stderr.isatty()
    if on_terminal:
        sys.stderr.write(f"mainspring: {sentence}\n")
        sys.stderr.flush()
    if not on_terminal or log.file is not None or log.syslog:
        structlog.get_logger("mainspring.stop").info(sentence, **figures)


def show_waiting(log: LogSettings, jobs: int, grace: float | None) -> None:
    """Show how many running jobs a stop waits for; ``grace`` in seconds, None: no limit."""
    end = "until it ends" if jobs == 1 else "until they end"
    limit = end if grace is None else f"up to {spell_duration(grace)}"
    way_out = "Ctrl-C to wait no longer than the grace" if grace is None else "Ctrl-C again to stop now"
    show_message(log, f"{_jobs(jobs)} running; waiting {limit}; {way_out}", jobs=jobs, grace=grace)


def show_released(log: LogSettings, jobs: int) -> None:
    """Show how many jobs did not end in time and were released."""
    show_message(log, f"{_jobs(jobs)} released", jobs=jobs)


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number} jobs"
