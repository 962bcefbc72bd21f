"""A disk that can be filled completely, and a server that stores its jobs on it."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .servers import Server


@contextlib.contextmanager
def small_file_system(directory: Path) -> Iterator[Path]:
    """Mount a file system of 6 MB in a directory; skip the test where mounting is not permitted."""
    if os.geteuid():
        pytest.skip("only root may mount a small file system")
    mount = directory / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(mount)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a file system here ({mounted.stderr.strip()})")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


class Filled:
    """A server whose disk can be filled completely and emptied again."""

    def __init__(self, server: Server, disk: Path) -> None:
        self.server = server
        self._ballast = disk / "ballast"

    def fill(self) -> None:
        """Use all free space."""
        with self._ballast.open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 - the loop ends with this error

    def free(self) -> None:
        """Free the space again."""
        self._ballast.unlink()
