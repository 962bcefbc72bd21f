"""The code of earlier versions and their stores, created by `make.py`."""

from __future__ import annotations

import asyncio
import io
import lzma
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import asyncpg

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE: Final = Path(__file__).parent
EXCLUDED: Final = (
    "src/mainspring/engines/zookeeper/[b-z]*",
    "src/mainspring/engines/zookeeper/*/**",
    "tests/conformance/suite/**",
)
"""A third of the code, which no test runs: the engine without its parser of addresses, and the driver of `scene`."""


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
        """A SQLite file after its scene."""
        return HERE / f"{self.name}.db.xz"

    @property
    def postgres(self) -> Path:
        """Statements that create a PostgreSQL schema after its scene."""
        return HERE / f"{self.name}.sql.xz"

    @property
    def workflows(self) -> Path:
        """A SQLite file with the runs of `workflow_program`."""
        return HERE / f"{self.name}-workflows.db.xz"


ROUND_2: Final = Version("round-2-start", "ad92843d7cb463ac8b8a21bbedb8e4af35ba35dc")
"""A version without workflows."""
WORKFLOW_CORE: Final = Version("workflow-core", "aba5cc5d44da777aa52b140dd7f0e43923aa8b6d")
"""The last version with the core of workflows alone."""
BEFORE_HTTP_API: Final = Version("before-http-api", "fad9acaa37c21bf0b67c160f0e2029d165fb2197")
"""The last version without namespaces, tags, logs, kept arguments, records of attempts, operations and tokens."""


def unpack_source(directory: Path, version: Version = ROUND_2) -> Path:
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


def with_source(source: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python imports the old code."""
    return {**environment, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
