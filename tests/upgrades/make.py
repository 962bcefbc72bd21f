"""Creates the files of old stores for these tests from a commit: ``python -m tests.upgrades.make``, in a clone that has it.

It needs git and PostgreSQL's programs. The files are part of the repository, so that the tests do not need its history.
"""

from __future__ import annotations

import lzma
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import apsw

from tests.postgres.server import PostgresServer, name_of, programs

from .old import EXCLUDED, HERE, POSTGRES, ROUND_2_START, SOURCE, SQLITE, unpack_source, with_source


def main() -> None:
    """Create all files."""
    SOURCE.write_bytes(pack(source()))
    with tempfile.TemporaryDirectory() as directory:
        old = unpack_source(Path(directory))
        SQLITE.write_bytes(pack(of_sqlite(old, Path(directory, "jobs.db"))))
        POSTGRES.write_bytes(pack(of_postgres(old)))


def source() -> bytes:
    """Return the commit's source as an archive of git. Raises CalledProcessError if the clone has no such commit."""
    without = [f":(exclude,glob){pattern}" for pattern in EXCLUDED]
    command = ["git", "archive", "--format=zip", "-0", ROUND_2_START, "src", *without]
    return subprocess.run(command, cwd=HERE.parents[1], check=True, stdout=subprocess.PIPE).stdout


def of_sqlite(old: Path, path: Path) -> bytes:
    """Return the SQLite file after the scene."""
    play(old, str(path))
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return path.read_bytes()


def of_postgres(old: Path) -> bytes:
    """Return the schema after the scene as statements, with a submission that is still in the inbox."""
    with PostgresServer() as server:
        url = server.create_database()
        play(old, url)
        server.sql("SELECT mainspring.submit('submitted', 'payload')", name_of(url))
        command = [str(programs() / "pg_dump"), "--no-owner", "--inserts", "--schema=mainspring", url]
        dump = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    # Commands of newer versions of psql, which older ones refuse.
    return re.sub(rb"^\\(?:un)?restrict .*\n", b"", dump, flags=re.MULTILINE)


def play(old: Path, store: str) -> None:
    """Run the scene with the old code on a store."""
    command = [sys.executable, str(HERE / "scene.py"), store]
    subprocess.run(command, check=True, env=with_source(old, os.environ))


def pack(data: bytes) -> bytes:
    """Return compressed data."""
    return lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)


if __name__ == "__main__":
    main()
