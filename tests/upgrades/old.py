"""The code of an earlier version and its stores, created by `make`."""

from __future__ import annotations

import asyncio
import io
import lzma
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import asyncpg

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE: Final = Path(__file__).parent
EXCLUDED: Final = ("src/mainspring/engines/zookeeper/[b-z]*",)
"""The engine of ZooKeeper, which no test of the old code runs, without its parser of addresses."""


class Version(NamedTuple):
    """An earlier version."""

    name: str
    commit: str

    @property
    def source(self) -> Path:
        """An archive of its code."""
        return HERE / f"{self.name}.zip.xz"

    @property
    def sqlite(self) -> Path:
        """A SQLite file after `scene`."""
        return HERE / f"{self.name}.db.xz"

    @property
    def postgres(self) -> Path:
        """Statements that create a PostgreSQL schema after `scene`."""
        return HERE / f"{self.name}.sql.xz"

    @property
    def workflows(self) -> Path:
        """A SQLite file with the runs of `workflow_program`."""
        return HERE / f"{self.name}-workflows.db.xz"


LAST: Final = Version("last-files", "c0b6ed820960e10930f60d2d1e8262314d51c93c")
"""The last version with its schema in many files: 18 of SQLite, and 22 of PostgreSQL."""


def unpack_source(directory: Path, version: Version = LAST) -> Path:
    """Extract old code into a directory, and return the entry for the path of modules."""
    with zipfile.ZipFile(io.BytesIO(unpack(version.source))) as archive:
        assert archive.comment.decode() == version.commit, "the archive's comment is its commit: run make.py again"
        archive.extractall(directory)
    return directory / "src"


def unpack(path: Path) -> bytes:
    """Return a decompressed file."""
    return lzma.decompress(path.read_bytes())


def restore(version: Version, url: str) -> None:
    """Create the schema of a version in an empty database."""

    async def execute() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(unpack(version.postgres).decode())
        finally:
            connection.terminate()

    asyncio.run(execute())


def with_source(source: Path, environment: Mapping[str, str], *others: Path) -> dict[str, str]:
    """Return an environment in which Python imports the old code."""
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(map(str, (source, *others))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
