from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from mainspring.worker import supervisor as supervisor_module
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
            await asyncio.sleep(0.01)  # the file system has no event to await


def supervisor(tmp_path: Path, code: int, processes: int = 2) -> Supervisor:
    return Supervisor(
        lambda start: [sys.executable, "-c", COUNTING, str(tmp_path), str(code), str(start.number)], processes
    )


@pytest.mark.parametrize("code", [RECYCLED_EXIT, 1])
def test_ended_processes_are_restarted_until_the_stop(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY", 0.01)

    async def main() -> int:
        supervised = supervisor(tmp_path, code)
        running = asyncio.create_task(supervised.run())
        await until_there(tmp_path / "steady0", tmp_path / "steady1")
        assert len(supervised.pids) == 2
        supervised.stop()
        return await running

    assert asyncio.run(main()) == 0
    assert len(list(tmp_path.glob("0-*"))) == 3


@pytest.mark.parametrize("code", [2, 3])
def test_a_fatal_exit_code_stops_all_processes(tmp_path: Path, code: int) -> None:
    assert asyncio.run(supervisor(tmp_path, code).run()) == code


def test_a_killed_process_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY", 0.01)

    async def main() -> None:
        supervised = supervisor(tmp_path, RECYCLED_EXIT, 1)
        running = asyncio.create_task(supervised.run())
        await until_there(tmp_path / "steady0")
        (tmp_path / "steady0").unlink()
        os.kill(supervised.pids[0], signal.SIGKILL)
        await until_there(tmp_path / "steady0")
        supervised.stop()
        await running

    asyncio.run(main())


SIGNALLED = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def stop(*_):
    (folder / f"stop{time.monotonic_ns()}").touch()
def stop_now(*_):
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGUSR2, stop_now)
(folder / "ready").touch()
while True:
    time.sleep(60)
"""


def test_processes_receive_one_signal_to_stop_and_one_to_stop_now(tmp_path: Path) -> None:
    async def main() -> int:
        supervised = Supervisor(lambda _: [sys.executable, "-c", SIGNALLED, str(tmp_path)], 1)
        running = asyncio.create_task(supervised.run())
        await until_there(tmp_path / "ready")
        supervised.interrupt()
        for _ in range(3):
            supervised.stop()
        async with asyncio.timeout(20):
            while not any(tmp_path.glob("stop*")):  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.01)  # the file system has no event to await
        await asyncio.sleep(0.3)
        assert not running.done()
        supervised.interrupt()
        async with asyncio.timeout(20):
            return await running

    assert asyncio.run(main()) == 0
    assert len(list(tmp_path.glob("stop*"))) == 1


INTERRUPTED = """
import os, pathlib, signal, sys
from mainspring.worker.processes import ignore_interrupts
os.kill(os.getpid(), signal.SIGINT)
ignore_interrupts()
os.kill(os.getpid(), signal.SIGINT)
sys.exit(2)
"""


def test_processes_never_receive_interrupts() -> None:
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    supervised = Supervisor(lambda _: [sys.executable, "-c", INTERRUPTED], 2)
    assert asyncio.run(asyncio.wait_for(supervised.run(), 20)) == 2
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


CRASHING = """
import os, pathlib, signal, sys, time
from mainspring.worker.supervisor import JobCounters
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
END
"""


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(2)", "os._exit(3)"])
def test_a_process_restarts_at_once_without_the_functions_that_ran_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY", 3600.0)  # no delay applies

    def command(start: Start) -> list[str]:
        program = CRASHING.replace("END", end)
        return [sys.executable, "-c", program, str(tmp_path), str(start.counters), " ".join(sorted(start.left_out))]

    async def main() -> int:
        supervised = Supervisor(command, 1)
        running = asyncio.create_task(supervised.run())
        await until_there(tmp_path / "steady")
        assert supervised.running == 2
        supervised.stop()
        return await running

    assert asyncio.run(main()) == 0
    assert {path.name for path in tmp_path.glob("started*")} == {"started ", "started f g"}


def test_new_counters_are_empty() -> None:
    descriptor = supervisor_module.create_counters()
    assert supervisor_module.read_counters(descriptor) is None
    os.close(descriptor)


TURNING = """
import os, pathlib, sys, time
from mainspring.worker.supervisor import JobCounters
folder, descriptor = pathlib.Path(sys.argv[1]), int(sys.argv[2])
counters = JobCounters(descriptor, ["f"])
counters.turned()
(folder / f"turns {os.getpid()}").touch()
while True:
    time.sleep(60)
"""


def test_a_process_whose_loop_does_not_turn_is_killed_and_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        def command(start: Start) -> list[str]:
            return [sys.executable, "-c", TURNING, str(tmp_path), str(start.counters)]

        supervised = Supervisor(command, 1, 3600.0)
        running = asyncio.create_task(supervised.run())
        async with asyncio.timeout(60):
            while not list(tmp_path.glob("turns *")):  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.01)
            (pid,) = supervised.pids
            now = time.monotonic()
            for _ in range(1900):
                now += 2.0
                supervised.look(now)
            while len(list(tmp_path.glob("turns *"))) < 2:  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.01)
        assert supervised.pids != [pid]
        for _ in range(10):  # during a stop, a few seconds are enough
            now += 1.0
            supervised.look(now)
        supervised.kill()
        await running

    asyncio.run(main())
