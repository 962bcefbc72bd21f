"""PgBouncer in front of a test server, ended in every outcome.

with PgBouncer(server, "transaction") as pooler:
    dsn = pooler.through(server.dsn())
    pooler.restart()
"""

from __future__ import annotations

import grp
import os
import pwd
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit

from .ports import steady_port
from .server import UNPRIVILEGED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .server import PostgresServer

TIMEOUT = 30.0


class PgBouncer:
    """Listens on a port of 127.0.0.1, and has the same databases as the server. A context manager: inside the block it runs."""

    def __init__(
        self,
        program: str,
        server: PostgresServer,
        mode: Literal["session", "transaction"],
        *,
        ignored: Sequence[str] = (),
    ) -> None:
        """``ignored``: parameters that clients may set when they connect, without effect; it refuses those who set others."""
        self._program = program
        self.port = steady_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = tempfile.TemporaryDirectory(prefix="pgbouncer-")
        self._settings = f"""
[databases]
* = host=127.0.0.1 port={server.port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = users
pool_mode = {mode}
max_client_conn = 200
default_pool_size = 40
ignore_startup_parameters = {", ".join(ignored)}
"""

    def __enter__(self) -> Self:
        directory = Path(self._directory.name)
        (directory / "pgbouncer.ini").write_text(self._settings)
        (directory / "users").write_text('"postgres" ""\n')
        directory.chmod(0o755)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._directory.cleanup()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        options: dict[str, Any] = {}
        if os.getuid() == 0:  # it refuses root
            group = grp.getgrgid(pwd.getpwnam(UNPRIVILEGED).pw_gid)
            options = {"user": UNPRIVILEGED, "group": group.gr_gid, "extra_groups": []}
        with (Path(self._directory.name) / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "pgbouncer.ini"],
                cwd=self._directory.name,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **options,
            )
        end = time.monotonic() + TIMEOUT
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), TIMEOUT).close()
            except OSError:
                assert self._process.poll() is None, self.log()
                assert time.monotonic() < end, self.log()
                time.sleep(0.01)
            else:
                return

    def stop(self) -> None:
        """End it with SIGTERM: it ends all connections at once. A second call has no effect."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def restart(self) -> None:
        """Stop it and start it again, on the same port."""
        self.stop()
        self.start()

    def log(self) -> str:
        """Return its log."""
        return (Path(self._directory.name) / "log").read_text("utf-8", "replace")

    def through(self, dsn: str) -> str:
        """Return the DSN of the same database through it."""
        return urlsplit(dsn)._replace(netloc=f"postgres@127.0.0.1:{self.port}").geturl()
