"""A digest of a program's own code. Nodes give a parked run to a worker once for each digest."""

from __future__ import annotations

import hashlib
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
    digest = hashlib.blake2b(version().encode(), digest_size=8)
    for name, module in sorted((sys.modules if modules is None else modules).items()):
        place = getattr(module, "__file__", None)
        if not isinstance(place, str):
            continue
        path = Path(place).resolve()
        if name.partition(".")[0] not in own and _is_library(path):
            continue
        try:
            content = path.read_bytes()
        except OSError:  # in an archive, or removed since
            content = b""
        digest.update(b"%b\0%d\0" % (name.encode("utf-8", "surrogateescape"), len(content)))
        digest.update(content)
    return digest.hexdigest()


def _is_library(path: Path) -> bool:
    return (
        not _INSTALLED.isdisjoint(path.parts)
        or path.is_relative_to(_OURS)
        or any(path.is_relative_to(directory) for directory in _STANDARD)
    )
