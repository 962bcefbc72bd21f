"""Data that not everybody may read: secrets that stand in texts by mistake, and files with payloads and results.

A token, a session or a sign-in link may stand in a path, a name, a reason or an error. The audit, logs and reported errors are
read by more people than the secret is for, so these hide everything that has its form. `mainspring.access.caller` describes
the form, and `mainspring.webhooks.signing` that of the secrets of webhooks.

Stores, their copies, logs, lock and pid files may be read by their owner and group only. The mode is an upper bound: a stricter
umask applies. An existing file keeps its mode.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

_SECRET: Final = re.compile(r"(ms[slc]?_)[A-Za-z0-9_-]{48}|(whsec_)(?:(?!whsec_)[A-Za-z0-9+/]){32,88}={0,2}")


def hide_secrets(text: str) -> str:
    """Return a text with ``ms_***`` in place of each secret. Hide before a text is cut: a part of a secret has not its form."""
    return _SECRET.sub(r"\1\2***", text) if "ms" in text or "whsec_" in text else text


def hide_in(value: Any) -> Any:
    """Return a value of JSON's types with all of its texts hidden, also those of keys."""
    if isinstance(value, str):
        return hide_secrets(value)
    if isinstance(value, dict):
        return {hide_in(key): hide_in(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [hide_in(one) for one in value]
    return value


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
