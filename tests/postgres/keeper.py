"""Ends a PostgreSQL server whose owner is gone, in every case, and removes its directory.

Run as a program, ``keeper.py DIRECTORY`` waits until its standard input ends: the owner holds the other end, and the kernel
closes it also for a process that was killed. PR_SET_PDEATHSIG would not do: it fires when the *thread* ends that started
the server, and not at all for the server's own children. It imports nothing that is not in the standard library.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import time
from pathlib import Path

TIMEOUT = 10.0
IPC_RMID = 0


def data(directory: Path) -> Path:
    """Return the data directory in a server's directory."""
    return directory / "data"


def processes(directory: Path) -> list[int]:
    """Return the postmaster and all its children, even without a postmaster: they run in the data directory."""
    home = str(data(directory))
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if str((entry / "cwd").readlink()) == home:
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended, or belongs to another user
    return found


def postmaster(directory: Path) -> int | None:
    """Return the pid of a running postmaster."""
    try:
        pid = int((data(directory) / "postmaster.pid").read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None
    return pid if pid in processes(directory) else None


def send(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to the processes that still run."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def await_end(directory: Path, seconds: float = TIMEOUT) -> bool:
    """Wait until no process of the server is left, without counting zombies; return whether that happened in time."""
    deadline = time.monotonic() + seconds
    while processes(directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def remove(directory: Path) -> None:
    """End the server of a directory, if it runs, and remove the directory. A second call does no harm."""
    send(processes(directory), signal.SIGCONT)
    leader = postmaster(directory)
    if leader is not None:
        send([leader], signal.SIGQUIT)
    if leader is None or not await_end(directory):
        while pids := processes(directory):
            send(pids, signal.SIGKILL)
            await_end(directory)
    _remove_segment(directory)
    shutil.rmtree(directory, ignore_errors=True)


def _remove_segment(directory: Path) -> None:
    """Remove the shared memory segment of a killed postmaster: the seventh line of its file names it."""
    try:
        lines = (data(directory) / "postmaster.pid").read_text().splitlines()
        segment = int(lines[6].split()[1])
    except (OSError, ValueError, IndexError):
        return
    ctypes.CDLL(None).shmctl(segment, IPC_RMID, None)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    remove(Path(sys.argv[1]))
