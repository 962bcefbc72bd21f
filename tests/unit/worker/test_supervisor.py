from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from mainspring.worker import backoff, job_counters
from mainspring.worker.supervisor import RECYCLED_EXIT, Start, Supervisor

if TYPE_CHECKING:
    from pathlib import Path

COUNTING = """
import os, pathlib, signal, sys, time
folder, code = pathlib.Path(sys.argv[1]), int(sys.argv[2])
(folder / f"{sys.argv[3]}-{os.getpid()}").touch()
if len(list(folder.glob(f"{sys.argv[3]}-*"))) < 3:
    sys.exit(code)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
(folder / f"steady{sys.argv[3]}").touch()
while True:
    time.sleep(60)
"""


async def until_there(*paths: Path) -> None:
    async with asyncio.timeout(20):
        while not all(path.exists() for path in paths):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the file system has no event to wait for


def supervisor(tmp_path: Path, code: int, processes: int = 2) -> Supervisor:
    return Supervisor(
        lambda start: [sys.executable, "-c", COUNTING, str(tmp_path), str(code), str(start.number)], processes
    )


@pytest.mark.parametrize("code", [RECYCLED_EXIT, 1])
def test_what_ends_is_started_again_until_the_stop(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "FIRST_DELAY", 0.01)

    async def main() -> int:
        kept = supervisor(tmp_path, code)
        running = asyncio.create_task(kept.run())
        await until_there(tmp_path / "steady0", tmp_path / "steady1")
        assert len(kept.pids) == 2
        kept.stop()
        return await running

    assert asyncio.run(main()) == 0
    assert len(list(tmp_path.glob("0-*"))) == 3


@pytest.mark.parametrize("code", [2, 3])
def test_a_hopeless_end_ends_all(tmp_path: Path, code: int) -> None:
    assert asyncio.run(supervisor(tmp_path, code).run()) == code


def test_a_killed_process_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "FIRST_DELAY", 0.01)

    async def main() -> None:
        kept = supervisor(tmp_path, RECYCLED_EXIT, 1)
        running = asyncio.create_task(kept.run())
        await until_there(tmp_path / "steady0")
        (tmp_path / "steady0").unlink()
        os.kill(kept.pids[0], signal.SIGKILL)
        await until_there(tmp_path / "steady0")
        kept.stop()
        await running

    asyncio.run(main())


TELLING = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def polite(*_):
    (folder / f"polite{time.monotonic_ns()}").touch()
def hurried(*_):
    sys.exit(0)
signal.signal(signal.SIGTERM, polite)
signal.signal(signal.SIGUSR2, hurried)
(folder / "ready").touch()
while True:
    time.sleep(60)
"""


def test_processes_are_told_once_to_stop_and_once_to_hurry(tmp_path: Path) -> None:
    async def main() -> int:
        kept = Supervisor(lambda _: [sys.executable, "-c", TELLING, str(tmp_path)], 1)
        running = asyncio.create_task(kept.run())
        await until_there(tmp_path / "ready")
        kept.interrupt()
        for _ in range(3):
            kept.stop()
        await asyncio.sleep(0.3)
        assert not running.done()
        kept.interrupt()
        async with asyncio.timeout(20):
            return await running

    assert asyncio.run(main()) == 0
    assert len(list(tmp_path.glob("polite*"))) == 1


DEAF = """
import os, pathlib, signal, sys
from mainspring.worker.children import ignore_interrupts
os.kill(os.getpid(), signal.SIGINT)
ignore_interrupts()
os.kill(os.getpid(), signal.SIGINT)
sys.exit(2)
"""


def test_interrupts_do_not_reach_a_process_from_its_first_moment_on() -> None:
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    kept = Supervisor(lambda _: [sys.executable, "-c", DEAF], 2)
    assert asyncio.run(asyncio.wait_for(kept.run(), 20)) == 2
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


CRASHING = """
import os, pathlib, signal, sys, time
from mainspring.worker.job_counters import JobCounters
folder, descriptor, left_out = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split()
class Delivery:
    def __init__(self, name):
        self.function, self.executor = type("F", (), {"name": name, "executor": "thread"}), "thread"
counters = JobCounters(descriptor, ["f", "g", "h"])
(folder / f"started {' '.join(left_out)}").touch()
if left_out:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    counters.begun([Delivery("h"), Delivery("h")])
    (folder / "steady").touch()
    while True:
        time.sleep(60)
counters.begun([Delivery("f"), Delivery("g")])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_comes_back_at_once_without_the_functions_that_ran_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "FIRST_DELAY", 3600.0)  # nothing waits for it

    def command(start: Start) -> list[str]:
        return [sys.executable, "-c", CRASHING, str(tmp_path), str(start.counters), " ".join(sorted(start.left_out))]

    async def main() -> int:
        kept = Supervisor(command, 1)
        running = asyncio.create_task(kept.run())
        await until_there(tmp_path / "steady")
        assert kept.running == 2
        kept.stop()
        return await running

    assert asyncio.run(main()) == 0
    assert {path.name for path in tmp_path.glob("started*")} == {"started ", "started f g"}


def test_new_counters_are_empty() -> None:
    descriptor = job_counters.create()
    assert job_counters.read(descriptor) is None
    os.close(descriptor)
