"""The code of an earlier version, and the stores that it has left: what `make.py` has made."""

from __future__ import annotations

import io
import lzma
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

ROUND_2_START: Final = "ad92843d7cb463ac8b8a21bbedb8e4af35ba35dc"
"""The commit with whose code stores and fleets are shared here."""
LEFT_OUT: Final = ("src/mainspring/engines/zookeeper/[b-z]*", "src/mainspring/engines/zookeeper/*/**")
"""A quarter of it, which no test runs: all of the engine but what reads addresses."""

HERE: Final = Path(__file__).parent
SOURCE: Final = HERE / "round-2-start.zip.xz"
SQLITE: Final = HERE / "round-2-start.db.xz"
POSTGRES: Final = HERE / "round-2-start.sql.xz"


def unpack_source(directory: Path) -> Path:
    """Put the old code into a directory; returns what has to be in front of the path of modules."""
    with zipfile.ZipFile(io.BytesIO(unpack(SOURCE))) as archive:
        assert archive.comment.decode() == ROUND_2_START, "git writes there of which commit it is: run make.py again"
        archive.extractall(directory)
    return directory / "src"


def unpack(path: Path) -> bytes:
    """Return what is in a compressed file."""
    return lzma.decompress(path.read_bytes())


def with_source(source: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python takes the old code."""
    return {**environment, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
