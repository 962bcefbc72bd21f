"""Files that only their owner and its group may read: stores, their copies, logs, lock and pid files.

Payloads and results are in them. The mode is an upper bound: a stricter umask holds. A file that exists keeps its mode.
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
    """Open a file and return its descriptor; where it does not exist and ``flags`` create it, with ``mode`` at most.

    It is also an opener for `open`. Raises OSError.
    """
    return os.open(path, flags | os.O_CLOEXEC, mode)


def open_own(path: Path) -> int:
    """Open a file to read and write that belongs to this program alone, or create it; return its descriptor.

    A symbolic link is not followed: in a directory that others may write to, it would lead to a file of their choice, and that
    would be overwritten. Raises OSError, which `why` explains.
    """
    return open_private(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)


def why(error: OSError) -> str:
    """Say why `open_own` has refused."""
    if error.errno == errno.ELOOP:
        return "it is a symbolic link, which is not followed; remove it, or name another file"
    return error.strerror or str(error)


def is_readable_by_all(path: Path) -> bool:
    """Tell whether every user of the machine may read a file: its mode allows it, and so does each directory on the way."""
    try:
        readable = path.stat().st_mode & stat.S_IROTH
        return bool(readable) and all(directory.stat().st_mode & stat.S_IXOTH for directory in path.absolute().parents)
    except OSError:
        return False
