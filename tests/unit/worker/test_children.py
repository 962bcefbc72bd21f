from __future__ import annotations

import subprocess
import sys

from mainspring.worker.processes import python

FIRST_PROCESS = """
import asyncio, contextlib, ctypes, os, subprocess, sys
from mainspring.worker import processes

async def main():
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans become its children, as those of process 1
    processes.REAPING_INTERVAL = 0.01
    own = processes.spawn([sys.executable, "-c", "import sys; sys.exit(7)"])
    os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)  # its exit code is not read yet
    subprocess.run(["sh", "-c", "(exit 0) & (exit 0) & exit 0"])
    reaping = asyncio.create_task(processes.reap_orphans())
    await asyncio.sleep(0.1)
    assert await processes.ended(own) == 7
    while True:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            break
        await asyncio.sleep(0.01)
    reaping.cancel()

asyncio.run(main())
"""


def test_the_first_process_of_a_container_reaps_orphans_and_leaves_the_exit_codes_of_its_own_processes() -> None:
    ended = subprocess.run(python("-c", FIRST_PROCESS), capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_child_process_does_not_import_from_the_working_directory() -> None:
    code = "import sys; print('' in sys.path)"
    assert subprocess.run(python("-c", code), capture_output=True, check=True).stdout == b"False\n"
    assert python()[0] == sys.executable
