"""Creates the files of old stores for these tests: ``python -m tests.upgrades.make VERSION``, in a clone with its commit.

It needs git and PostgreSQL's programs. The files are part of the repository, so that the tests do not need its history.
"""

from __future__ import annotations

import io
import lzma
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from tests.postgres.server import PostgresServer, name_of, programs

from .old import BEFORE_HTTP_API, EXCLUDED, HERE, ROUND_2, Version, with_source

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(version: Version) -> None:
    """Create the files of a version."""
    version.source.write_bytes(pack(source(version, EXCLUDED)))
    with tempfile.TemporaryDirectory() as directory:
        old = unpack_commit(version, Path(directory))
        play(version, old, f"{directory}/jobs.db")
        version.sqlite.write_bytes(pack(of_file(Path(directory, "jobs.db"))))
        version.postgres.write_bytes(pack(of_postgres(version, old)))


def source(version: Version, without: Sequence[str] = ()) -> bytes:
    """Return the commit's source as an archive of git. Raises CalledProcessError if the clone has no such commit."""
    excluded = [f":(exclude,glob){pattern}" for pattern in without]
    command = ["git", "archive", "--format=zip", "-0", version.commit, "src", *excluded]
    return subprocess.run(command, cwd=HERE.parents[1], check=True, stdout=subprocess.PIPE).stdout


def unpack_commit(version: Version, directory: Path) -> Path:
    """Extract the whole source of the commit into a directory, and return the entry for the path of modules."""
    with zipfile.ZipFile(io.BytesIO(source(version))) as archive:
        archive.extractall(directory)
    return directory / "src"


def of_file(path: Path) -> bytes:
    """Return a SQLite file whose node has crashed, with what is in its log."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return path.read_bytes()


def of_postgres(version: Version, old: Path) -> bytes:
    """Return the schema after the scene as statements, with what is still in the inbox."""
    with PostgresServer() as server:
        url = server.create_database()
        play(version, old, url)
        server.sql("SELECT mainspring.submit('submitted', 'payload')", name_of(url))
        if version is not ROUND_2:
            server.sql(
                "SELECT mainspring.submit(convert_to('team' || chr(31) || 'submitted', 'UTF8'), 'payload')",
                name_of(url),
            )
        command = [str(programs() / "pg_dump"), "--no-owner", "--inserts", "--schema=mainspring", url]
        dump = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    # Commands of newer versions of psql, which older ones refuse.
    return re.sub(rb"^\\(?:un)?restrict .*\n", b"", dump, flags=re.MULTILINE)


def play(version: Version, old: Path, store: str) -> None:
    """Run the scene with the old code on a store."""
    command = [sys.executable, str(HERE / "scene.py"), version.name, store]
    subprocess.run(command, check=True, env=with_source(old, os.environ))


def pack(data: bytes) -> bytes:
    """Return compressed data."""
    return lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)


if __name__ == "__main__":
    main({version.name: version for version in (ROUND_2, BEFORE_HTTP_API)}[sys.argv[1]])
