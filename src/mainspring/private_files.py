"""Files that only their owner and group may read: stores, their copies, logs, lock and pid files.

They contain payloads and results. The mode is an upper bound: a stricter umask applies. An existing file keeps its mode.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MODE = 0o640


def open_private(path: Path | str, flags: int, mode: int = MODE) -> int:
    """Open a file and return its descriptor. A file that ``flags`` create gets ``mode`` at most.

    It can be the ``opener`` of `open`. Raises OSError.
    """
    return os.open(path, flags | os.O_CLOEXEC, mode)


def open_own(path: Path) -> int:
    """Open or create a file of this program for reading and writing; return its descriptor.

    It does not follow a symbolic link: in a directory that others may write to, a link could make the program overwrite any
    file. Raises OSError, which `refusal_reason` explains.
    """
    return open_private(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)


def refusal_reason(error: OSError) -> str:
    """Return the reason for an error of `open_own`."""
    if error.errno == errno.ELOOP:
        return "it is a symbolic link, which Mainspring does not follow; remove it, or name another file"
    return error.strerror or str(error)


def is_readable_by_all(path: Path) -> bool:
    """Return whether every user of the machine may read a file: its mode and all directories above it allow it."""
    try:
        readable = path.stat().st_mode & stat.S_IROTH
        return bool(readable) and all(directory.stat().st_mode & stat.S_IXOTH for directory in path.absolute().parents)
    except OSError:
        return False
