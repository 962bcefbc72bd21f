"""Creates the files of an old version for these tests: ``python -m tests.upgrades.make``, in a clone with its commit.

It needs git and PostgreSQL's programs. The files are part of the repository, so that the tests do not need its history.
"""

from __future__ import annotations

import io
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import apsw

from tests.postgres.server import PostgresServer, name_of, programs

from .old import EXCLUDED, HERE, LAST, Version, with_source


def main(version: Version) -> None:
    """Create the files of a version."""
    version.source.write_bytes(pack(archive(version, "src", *(f":(exclude,glob){one}" for one in EXCLUDED))))
    with tempfile.TemporaryDirectory() as directory:
        old = Path(directory)
        with zipfile.ZipFile(io.BytesIO(archive(version, "src", "tests/*.py", "tests/conformance"))) as whole:
            whole.extractall(old)
        play(old, "scene.py", f"{directory}/jobs.db")
        version.sqlite.write_bytes(pack(of_file(old / "jobs.db")))
        version.postgres.write_bytes(pack(of_postgres(old)))
        shutil.copy(HERE / "workflow_program.py", directory)  # its path is in the store
        play(old, "workflow_scene.py", directory)
        version.workflows.write_bytes(pack(of_file(old / "store.db")))


def archive(version: Version, *paths: str) -> bytes:
    """Return files of the commit as an archive of git. Raises CalledProcessError if the clone has no such commit."""
    command = ["git", "archive", "--format=zip", "-0", version.commit, *paths]
    return subprocess.run(command, cwd=HERE.parents[1], check=True, stdout=subprocess.PIPE).stdout


def play(old: Path, scene: str, store: str) -> None:
    """Run a scene with the code in a directory."""
    environment = with_source(old / "src", os.environ, old)
    subprocess.run([sys.executable, "-P", str(HERE / scene), store], check=True, cwd=old, env=environment)


def of_file(path: Path) -> bytes:
    """Return a SQLite file whose node has crashed, with what is in its log."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return path.read_bytes()


def of_postgres(old: Path) -> bytes:
    """Return the schema after the scene as statements, with what is still in the inbox."""
    with PostgresServer() as server:
        url = server.create_database()
        play(old, "scene.py", url)
        server.sql("SELECT mainspring.submit('submitted', 'payload')", name_of(url))
        command = [str(programs() / "pg_dump"), "--no-owner", "--inserts", "--schema=mainspring", url]
        dump = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    # Commands of newer versions of psql, which older ones refuse.
    return re.sub(rb"^\\(?:un)?restrict .*\n", b"", dump, flags=re.MULTILINE)


def pack(data: bytes) -> bytes:
    """Return compressed data."""
    return lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)


if __name__ == "__main__":
    main(LAST)
