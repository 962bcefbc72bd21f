"""The code of an earlier version and its stores, created by `make.py`."""

from __future__ import annotations

import io
import lzma
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

ROUND_2_START: Final = "ad92843d7cb463ac8b8a21bbedb8e4af35ba35dc"
"""The commit of the old code in stores and fleets of two versions."""
EXCLUDED: Final = ("src/mainspring/engines/zookeeper/[b-z]*", "src/mainspring/engines/zookeeper/*/**")
"""A quarter of the code, which no test runs: the engine without its parser of addresses."""

HERE: Final = Path(__file__).parent
SOURCE: Final = HERE / "round-2-start.zip.xz"
SQLITE: Final = HERE / "round-2-start.db.xz"
POSTGRES: Final = HERE / "round-2-start.sql.xz"


def unpack_source(directory: Path) -> Path:
    """Extract the old code into a directory, and return the entry for the path of modules."""
    with zipfile.ZipFile(io.BytesIO(unpack(SOURCE))) as archive:
        assert archive.comment.decode() == ROUND_2_START, "the archive's comment is its commit: run make.py again"
        archive.extractall(directory)
    return directory / "src"


def unpack(path: Path) -> bytes:
    """Return a decompressed file."""
    return lzma.decompress(path.read_bytes())


def with_source(source: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python imports the old code."""
    return {**environment, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
