"""Real PostgreSQL servers for tests and benchmarks: each in its own directory, ended in every outcome.

    with PostgresServer() as server:
        dsn = server.create_database()
        server.kill()
        server.start()

Everything here blocks; in a coroutine, use ``asyncio.to_thread``. It needs Linux.
"""

from __future__ import annotations

import atexit
import functools
import grp
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit

from . import keeper
from .ports import steady_port

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

START = 60.0
STOP = 60.0
DEBIAN = Path("/usr/lib/postgresql")
SHARED_MEMORY = Path("/dev/shm")
ROOMY = 2 << 30
UNPRIVILEGED = "postgres"

Mode = Literal["smart", "fast", "immediate"]
STOP_SIGNALS: Mapping[Mode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
Value = str | int | bool

SETTINGS: Mapping[str, Value] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "dynamic_shared_memory_type": "mmap",  # in the data directory, and removed with it: nothing stays in /dev/shm
    "shared_buffers": "64MB",
    "max_wal_size": "1GB",
    "timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%a %d ",
}
"""The settings of every server, in addition to PostgreSQL's own defaults."""


class PostgresError(Exception):
    """A server did not start, or one of PostgreSQL's programs failed; the message ends with its output."""


class NotInstalledError(PostgresError):
    """There is no PostgreSQL server on this machine."""


def programs() -> Path:
    """Return the directory of PostgreSQL's programs, of the newest installed version.

    Debian keeps them out of PATH, and what it has in PATH under their names are slower wrappers. Raises NotInstalledError.
    """
    versions = [path.parent for path in DEBIAN.glob("*/bin/initdb")]
    if versions:
        return max(versions, key=lambda path: int(path.parent.name))
    found = shutil.which("initdb")
    if found is None:
        raise NotInstalledError("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    return Path(found).resolve().parent


def memory_directory() -> Path | None:
    """Return a file system in memory, if there is a large one: durability costs nothing there, and kills lose nothing."""
    try:
        room = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    return SHARED_MEMORY if room.f_bavail * room.f_frsize > ROOMY else None


def several(database: str, *servers: PostgresServer, **parameters: str) -> str:
    """Return one DSN for several servers, of which the client takes the one that can be written to."""
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    query = {"target_session_attrs": "read-write", **parameters}
    return f"postgresql://postgres@{hosts}/{database}?" + "&".join(f"{name}={value}" for name, value in query.items())


def name_of(dsn: str) -> str:
    """Return the database that a DSN names."""
    return urlsplit(dsn).path.removeprefix("/")


class PostgresServer:
    """One server on a port of 127.0.0.1, which accepts every client as the superuser ``postgres``.

    A context manager: inside the block it runs, and afterwards nothing of it is left, also where this process was killed.
    It is durable as PostgreSQL is by default, unless ``fsync`` or ``synchronous_commit`` say otherwise. ``settings`` are
    those of postgresql.conf. The directory is made below ``parent``, by default the one for temporary files. Segments of the
    write-ahead log are small, so that a server is there sooner; PostgreSQL's own default are 16 MB. ``keeps_connection``: one
    connection creates and drops all databases, in place of a psql for each.
    """

    def __init__(
        self,
        *,
        fsync: bool = True,
        synchronous_commit: str = "on",
        max_connections: int = 100,
        parent: Path | None = None,
        wal_segment_mb: int = 1,
        keeps_connection: bool = False,
        **settings: Value,
    ) -> None:
        self.port = 0
        self._settings: dict[str, Value] = {
            **SETTINGS,
            "fsync": fsync,
            "synchronous_commit": synchronous_commit,
            "max_connections": max_connections,
            **settings,
        }
        self._parent = parent
        self._wal_segment_mb = wal_segment_mb
        self._programs = programs()
        self._directory: Path | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._keeps_connection = keeps_connection
        self._connection: psycopg.Connection[Any] | None = None
        self._names = itertools.count(1)
        self._standbys = itertools.count(1)
        self._synchronous: list[str] = []

    def __enter__(self) -> Self:
        try:
            self._create()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- lifecycle

    def start(self) -> None:
        """Start it and wait until it accepts connections, after recovery. Raises PostgresError with the end of its log."""
        assert not self.is_running, "it runs already"
        chooses = not self.port
        for _ in range(5 if chooses else 1):
            if chooses:
                self.port = steady_port()
            before = len(self.log())
            self._process = self._launch()
            if self._await_ready():
                return
            written = self.log()[before:]
            if "Address already in use" not in written:
                break
        raise PostgresError(f"PostgreSQL did not start: {written[-2000:]}")

    def stop(self, mode: Mode = "fast") -> None:
        """Shut it down: ``fast`` ends sessions, ``smart`` waits for them, ``immediate`` leaves recovery to the next start."""
        assert self._process is not None, "it does not run"
        self._disconnect()
        self._process.send_signal(STOP_SIGNALS[mode])
        self._process.wait(STOP)
        self._process = None

    def restart(self, mode: Mode = "fast") -> None:
        """Stop it and start it again, on the same port."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Send SIGKILL to the postmaster, then to all its other processes: data that was not flushed to the files is lost.

        The files stay, so ``start`` brings it back. To kill a backend alone, send SIGKILL to its ``pg_backend_pid()``:
        then the postmaster ends all others and recovers by itself.
        """
        assert self._process is not None, "it does not run"
        self._disconnect()
        self._process.kill()
        while pids := keeper.processes(self.directory):
            keeper.send(pids, signal.SIGKILL)
            keeper.await_end(self.directory)
        self._process.wait(STOP)
        self._process = None

    def pause(self) -> None:
        """Stop all its processes with SIGSTOP: connections stay open without answers. The kernel still accepts some."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGSTOP)
        stopped: set[int] = set()
        while new := set(keeper.processes(self.directory)) - stopped:  # those that were forked a moment before
            keeper.send(sorted(new), signal.SIGSTOP)
            stopped |= new

    def resume(self) -> None:
        """Continue its processes."""
        keeper.send(keeper.processes(self.directory), signal.SIGCONT)

    def close(self) -> None:
        """End it in any state, and remove its directory. A second call does no harm."""
        self._disconnect()
        if self._directory is not None:
            keeper.remove(self._directory)
            self._directory = None
        if self._process is not None:
            self._process.wait(STOP)
            self._process = None
        if self._keeper is not None:
            self._keeper.communicate()
            self._keeper = None

    # ---- properties

    @property
    def directory(self) -> Path:
        """Its directory: ``data`` and ``log``."""
        assert self._directory is not None, "it has not been entered, or is closed"
        return self._directory

    @property
    def is_running(self) -> bool:
        """Whether its postmaster runs, even if it is paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The postmaster's pid."""
        assert self._process is not None, "it does not run"
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """The pids of all its processes."""
        return keeper.processes(self.directory)

    def log(self) -> str:
        """Return its log."""
        try:
            return (self.directory / "log").read_text("utf-8", "replace")
        except FileNotFoundError:
            return ""

    # ---- databases

    def dsn(self, database: str = "postgres") -> str:
        """Return the URL of a database."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run statements by psql; return the rows as lines, with columns separated by ``|``. Raises PostgresError."""
        return self._run("psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-d", self.dsn(database), "-c", statement).strip()

    def create_database(self, template: str = "template1") -> str:
        """Create a database with a new name, as a copy of an unused one; return its DSN."""
        name = f"d{next(self._names)}"
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.dsn(name)

    def drop_database(self, dsn: str) -> None:
        """Drop a database, with all connections to it; a missing one is no error."""
        self._execute(f'DROP DATABASE IF EXISTS "{name_of(dsn)}" WITH (FORCE)')

    def _execute(self, statement: str) -> None:
        """Run a statement without rows."""
        if not self._keeps_connection:
            self.sql(statement)
            return
        import psycopg

        if self._connection is not None and self._connection.closed:
            self._connection = None
        if self._connection is None:
            self._connection = psycopg.connect(self.dsn(), autocommit=True, prepare_threshold=None)
        self._connection.execute(statement.encode())

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def set(self, **settings: Value) -> None:
        """Change settings that need no restart; sessions see them within milliseconds, not at once."""
        for name, value in settings.items():
            self.sql(f"ALTER SYSTEM SET {name} = {_quoted(value)}")
        self.sql("SELECT pg_reload_conf()")

    # ---- standbys

    def replica(self, *, synchronous: bool = True, **settings: Value) -> Standby:
        """Return a streaming standby of it, as a context manager.

        With a synchronous one, commits here wait until it has them on its disk: for as long as it is away, they wait for
        ever. Every synchronous standby has to confirm, so each of them may be promoted.
        """
        return Standby(self, f"standby{next(self._standbys)}", synchronous=synchronous, **settings)

    def synchronise(self, *names: str) -> None:
        """Let commits wait for all of these standbys, and for no other; without names, for none."""
        self._synchronous = list(names)
        self.set(synchronous_standby_names=f"{len(names)} ({', '.join(names)})" if names else "")

    def _await_standby(self, name: str, *, synchronous: bool) -> None:
        states = "('sync')" if synchronous else "('async', 'potential', 'sync', 'quorum')"
        query = (
            f"SELECT 1 FROM pg_stat_replication WHERE application_name = '{name}'"
            f" AND state = 'streaming' AND sync_state IN {states}"
        )
        deadline = time.monotonic() + START
        while not self.sql(query):
            if time.monotonic() > deadline:
                raise PostgresError(f"{name} does not stream: {self.log()[-2000:]}")
            time.sleep(0.01)

    # ---- implementation

    def _create(self) -> None:
        self._make_directory()
        # Ownership and rights are those of initdb.
        subprocess.run(
            ["cp", "-a", _initialized(os.getpid(), self._wal_segment_mb), keeper.data(self.directory)], check=True
        )
        self._configure()

    def _initialize(self) -> None:
        """Create its files, and do not start it."""
        self._make_directory()
        self._run(
            "initdb",
            *("--pgdata", str(keeper.data(self.directory)), "--username", "postgres", "--auth", "trust"),
            *("--encoding", "UTF8", "--locale", "C", "--wal-segsize", str(self._wal_segment_mb)),
            *("--no-sync", "--no-instructions"),  # no sync of what is there before it starts
        )

    def _make_directory(self) -> None:
        # below pytest's own directory nobody but its owner may go
        path = tempfile.mkdtemp(prefix="postgres-", dir=self._parent or tempfile.gettempdir())
        self._directory = Path(path).resolve()  # its path in /proc
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(self._directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C does not reach it
        )
        if os.getuid() == 0:
            owner = pwd.getpwnam(UNPRIVILEGED)
            os.chown(self._directory, owner.pw_uid, owner.pw_gid)

    def _configure(self) -> None:
        lines = [f"{name} = {_quoted(value)}\n" for name, value in self._settings.items()]
        with (keeper.data(self.directory) / "postgresql.conf").open("a") as file:
            file.writelines(["\n", *lines])

    def _launch(self) -> subprocess.Popen[bytes]:
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                [self._programs / "postgres", "-D", keeper.data(self.directory), "-p", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._options(),
            )

    def _await_ready(self) -> bool:
        """Wait for the state that pg_ctl waits for, but poll ten times as often; return False if it ended."""
        assert self._process is not None
        deadline = time.monotonic() + START
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise PostgresError(f"PostgreSQL is not ready after {START:.0f} s: {self.log()[-2000:]}")
            lines = self._status()
            if len(lines) > 7 and lines[0] == str(self._process.pid) and lines[7] == "ready":
                return True
            time.sleep(0.005)
        self._process = None
        return False

    def _status(self) -> list[str]:
        try:
            written = (keeper.data(self.directory) / "postmaster.pid").read_text()
        except FileNotFoundError:
            return []
        return [line.strip() for line in written.splitlines()]

    def _run(self, program: str, *arguments: str) -> str:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [self._programs / program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            # A change of user costs a fork of this whole process, and psql needs none.
            **self._options(unprivileged=program != "psql"),
        )
        if done.returncode:
            raise PostgresError(f"{program}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def _options(self, *, unprivileged: bool = True) -> dict[str, Any]:
        """Return the options to run a program in the server's directory; root runs it as another user, since it refuses root."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
        options: dict[str, Any] = {"cwd": self.directory, "env": {**environment, "LC_ALL": "C"}}
        if unprivileged and os.getuid() == 0:
            group = grp.getgrgid(pwd.getpwnam(UNPRIVILEGED).pw_gid)
            options |= {"user": UNPRIVILEGED, "group": group.gr_gid, "extra_groups": []}
        return options


@functools.cache
def _initialized(owner: int, wal_segment_mb: int) -> Path:
    """Return the files of a new server, for this process: a copy takes a tenth of initdb."""
    server = PostgresServer(parent=memory_directory(), wal_segment_mb=wal_segment_mb)

    def close() -> None:
        if os.getpid() == owner:  # not in a fork of it
            server.close()

    atexit.register(close)
    server._initialize()
    return keeper.data(server.directory)


class Standby(PostgresServer):
    """A server that follows another by streaming replication until it is promoted; created by ``PostgresServer.replica``."""

    def __init__(self, primary: PostgresServer, name: str, *, synchronous: bool, **settings: Value) -> None:
        super().__init__(parent=primary._parent, **{**primary._settings, **settings})  # type: ignore[arg-type]
        self.name = name
        self._primary = primary
        self._is_synchronous = synchronous

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            if self._is_synchronous:
                self._primary.synchronise(*self._primary._synchronous, self.name)
            self._primary._await_standby(self.name, synchronous=self._is_synchronous)
        except BaseException:
            self.close()
            raise
        return self

    def promote(self) -> None:
        """Make it a primary, and wait until it accepts writes. The old primary must not continue: nothing fences it."""
        if self.sql("SELECT pg_promote()") != "t":
            raise PostgresError(f"{self.name} was not promoted: {self.log()[-2000:]}")

    def _create(self) -> None:
        self._make_directory()
        source = f"postgresql://postgres@127.0.0.1:{self._primary.port}/postgres?application_name={self.name}"
        self._run(
            "pg_basebackup",
            *("--dbname", source, "--pgdata", str(keeper.data(self.directory)), "--write-recovery-conf"),
            *("--wal-method", "stream", "--checkpoint", "fast", "--no-sync"),
        )
        self._configure()
        with (keeper.data(self.directory) / "postgresql.auto.conf").open("a") as file:
            file.write("synchronous_standby_names = ''\n")  # the backup contains the primary's own


def _quoted(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "'" + str(value).replace("'", "''") + "'"
