"""Attacks on files: links in the way of those that a node creates, a store that is opened twice, or moved away."""

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
STORE = ("jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db.lock")


def open_files(directory: Path) -> list[str]:
    """Return the files there that users of other groups may read or write, or the group may write."""
    found = []
    for path in sorted(directory.iterdir()):
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_file() and mode & ~0o640:
            found.append(f"{path.name} {mode:o}")
    return found


def readable_files(directory: Path) -> None:
    """Look at what a node creates under the usual umask."""
    store = directory / "store"
    store.mkdir()
    options = ("--log-file", str(store / "node.log"), "--pid-file", str(store / "node.pid"))
    with serving(directory, *options, store=f"sqlite:///{store}/jobs.db", tracer=UMASK) as server:
        with server.peer() as client:
            client.submit(b"secret", b"", b"secret", Kind.SUBMIT_JOB_BG)
        assert {*STORE, "node.log", "node.pid"} <= {path.name for path in store.iterdir()}
        assert open_files(store) == []


def links_in_the_way(directory: Path) -> None:
    """Put a symbolic link where a node creates a file: what it leads to stays as it is."""
    for name, options in (("jobs.db.lock", ()), ("node.pid", ("--pid-file", "node.pid"))):
        place = directory / f"with {name}"
        place.mkdir()
        precious = place / "precious"
        precious.write_text("precious")
        (place / name).symlink_to(precious)
        code, said = run_to_end(place, *options)
        assert code != 0
        assert name in said
        assert precious.read_text() == "precious"


def second_node(server: Server) -> None:
    """Start another node on an open store, by a hard link, and after its lock file was deleted."""
    directory = server.directory
    hard = directory / "hard.db"
    with server.peer() as client:
        hard.hardlink_to(directory / "jobs.db")
        code, said = run_to_end(directory, store="sqlite:///hard.db")
        assert code != 0, said
        hard.unlink()
        (directory / "jobs.db.lock").unlink(missing_ok=True)
        code, said = run_to_end(directory)
        assert code != 0, said
        client.submit(b"f", b"unique", b"", Kind.SUBMIT_JOB_BG)


def moved_away(directory: Path) -> None:
    """Move the file of a running node: it is not ready, and acknowledges nothing that its successor would not have."""
    place = directory / "moved"
    place.mkdir()
    with serving(place, "--http", "127.0.0.1:0") as server, server.extended() as client:
        handle = client.put(b"f")
        (place / "jobs.db").rename(place / "elsewhere.db")
        client.request(b"f")
        assert client.next().kind is Kind.ERROR
        assert get(server.http, "/readyz")[0] == 503
        assert str(place / "jobs.db") in server.written()
        server.kill()
    (place / "elsewhere.db").rename(place / "jobs.db")
    with serving(place) as server, server.extended() as client:
        assert client.show(handle)["state"] == "pending"
