"""Ends the ZooKeeper servers of a directory whose owner has gone, in whatever way, and removes the directory.

Run as a program, ``keeper.py DIRECTORY`` waits until its standard input ends: the owner holds the other end, and the kernel
closes it also for a process that was killed. PR_SET_PDEATHSIG would not do: it fires when the *thread* ends that started the
servers. It imports nothing that is not in the standard library.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path


def processes(directory: Path) -> list[int]:
    """Return the servers that run in a directory, or in one below it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (entry / "cwd").readlink().is_relative_to(directory):
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended, or belongs to somebody else
    return found


def remove(directory: Path) -> None:
    """End the servers of a directory, and remove it. To do it twice does no harm."""
    while pids := processes(directory):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.005)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    remove(Path(sys.argv[1]))
