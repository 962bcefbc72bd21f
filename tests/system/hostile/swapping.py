"""Attacks on files: symbolic links at the paths of a node's files, a store that is opened twice or moved."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from tests.interop.packets import Kind
from tests.system.servers import run_to_end, serving

from .watching import get

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.servers import Server

UMASK = ("sh", "-c", 'umask 022; exec "$@"', "sh")
STORE_FILES = ("jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db.lock")


def open_files(directory: Path) -> list[str]:
    """Return the files that other users may read or write, or the group may write."""
    found = []
    for path in sorted(directory.iterdir()):
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_file() and mode & ~0o640:
            found.append(f"{path.name} {mode:o}")
    return found


def readable_files(directory: Path) -> None:
    """Check the permissions of the files that a node creates under the default umask."""
    store = directory / "store"
    store.mkdir()
    options = ("--log-file", str(store / "node.log"), "--pid-file", str(store / "node.pid"))
    with serving(directory, *options, store=f"sqlite:///{store}/jobs.db", tracer=UMASK) as server:
        with server.peer() as client:
            client.submit(b"secret", b"", b"secret", Kind.SUBMIT_JOB_BG)
        assert {*STORE_FILES, "node.log", "node.pid"} <= {path.name for path in store.iterdir()}
        assert open_files(store) == []


def links_in_the_way(directory: Path) -> None:
    """Put a symbolic link at the path of a file that a node creates: the link's target must not change."""
    for name, options in (("jobs.db.lock", ()), ("node.pid", ("--pid-file", "node.pid"))):
        place = directory / f"with {name}"
        place.mkdir()
        precious = place / "precious"
        precious.write_text("precious")
        (place / name).symlink_to(precious)
        code, output = run_to_end(place, *options)
        assert code != 0
        assert name in output
        assert precious.read_text() == "precious"


def second_node(server: Server) -> None:
    """Start another node on an open store: by a hard link, and after the lock file is deleted."""
    directory = server.directory
    hard = directory / "hard.db"
    with server.peer() as client:
        hard.hardlink_to(directory / "jobs.db")
        code, output = run_to_end(directory, store="sqlite:///hard.db")
        assert code != 0, output
        hard.unlink()
        (directory / "jobs.db.lock").unlink(missing_ok=True)
        code, output = run_to_end(directory)
        assert code != 0, output
        client.submit(b"f", b"unique", b"", Kind.SUBMIT_JOB_BG)


def moved_away(directory: Path) -> None:
    """Move the store of a running node: it must become unready, and acknowledge nothing that its successor would lack."""
    place = directory / "moved"
    place.mkdir()
    with serving(place, "--http", "127.0.0.1:0") as server, server.extended() as client:
        handle = client.submit_new(b"f")
        (place / "jobs.db").rename(place / "elsewhere.db")
        client.request(b"f")
        assert client.next().kind is Kind.ERROR
        assert get(server.http, "/readyz")[0] == 503
        assert str(place / "jobs.db") in server.log_text()
        server.kill()
    (place / "elsewhere.db").rename(place / "jobs.db")
    with serving(place) as server, server.extended() as client:
        assert client.show(handle)["state"] == "pending"
