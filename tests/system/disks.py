"""A disk that can be filled to the last block, and a server on it."""

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
    """Give a file system of 6 MB in a directory; skip the test where none may be mounted."""
    if os.geteuid():
        pytest.skip("only root may mount a small file system")
    mount = directory / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(mount)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system may be mounted here ({mounted.stderr.strip()})")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


class Filled:
    """A server whose disk is filled to the last block and emptied again."""

    def __init__(self, server: Server, disk: Path) -> None:
        self.server = server
        self._ballast = disk / "ballast"

    def fill(self) -> None:
        """Leave no space."""
        with self._ballast.open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 - what ends the loop

    def free(self) -> None:
        """Give the space back."""
        self._ballast.unlink()
