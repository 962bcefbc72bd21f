"""A digest of a program's own code. Nodes give a parked run to a worker once for each digest."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mainspring.version import version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

_INSTALLED: Final = {"site-packages", "dist-packages"}
"""Directories of installed libraries."""
_STANDARD: Final = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
_OURS: Final = Path(__file__).resolve().parents[1]


def code_digest(packages: Iterable[str], modules: Mapping[str, ModuleType] | None = None) -> str:
    """Return a digest of the files of all loaded modules that are not libraries, and of Mainspring's version.

    The modules of ``packages``, by the first parts of their names, count in any case: a program may be installed like a library.
    ``modules`` are by default those of the interpreter.
    """
    own = set(packages)
    directories = _Directories()
    digest = hashlib.blake2b(version().encode(), digest_size=8)
    for name, module in sorted((sys.modules if modules is None else modules).items()):
        place = getattr(module, "__file__", None)
        if not isinstance(place, str):
            continue
        if name.partition(".")[0] not in own and directories.is_library(place):
            continue
        try:
            content = Path(place).read_bytes()
        except OSError:  # in an archive, or removed since
            content = b""
        digest.update(b"%b\0%d\0" % (name.encode("utf-8", "surrogateescape"), len(content)))
        digest.update(content)
    return digest.hexdigest()


class _Directories:
    """Tells libraries by their directories. Each is resolved once: a program has far fewer of them than modules."""

    def __init__(self) -> None:
        self._found: dict[str, bool] = {}

    def is_library(self, place: str) -> bool:
        """Return whether a file is of a library; of a link, its target counts."""
        if os.path.islink(place):  # noqa: PTH114 - a Path for each module takes longer than all the rest
            return _is_library(Path(place).resolve())
        directory = os.path.dirname(place)  # noqa: PTH120 - as above
        found = self._found.get(directory)
        if found is None:
            found = self._found[directory] = _is_library(Path(directory).resolve())
        return found


def _is_library(path: Path) -> bool:
    return (
        not _INSTALLED.isdisjoint(path.parts)
        or path.is_relative_to(_OURS)
        or any(path.is_relative_to(directory) for directory in _STANDARD)
    )
