"""An App that processes import in tests."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time

from mainspring import App, current_job

app = App()


@app.task(executor="process")
def square(x: int) -> int:
    return x * x


@app.task(executor="process")
def pid() -> int:
    return os.getpid()


@app.task
def thread_pid() -> int:
    return os.getpid()


@app.task
async def coroutine_pid() -> int:
    return os.getpid()


@app.task
async def coroutine_for_ever() -> None:
    current_job().data(b"begun")
    try:
        await asyncio.Event().wait()
    finally:
        current_job().data(b"over")


@app.task
def crash_in_a_thread() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@app.task(executor="process")
def telling() -> str:
    job = current_job()
    job.progress(1, 2, "half")
    job.log.info("said")
    job.data(b"part")
    job.warning(b"careful")
    return f"{job.handle} {job.attempt} {job.unique}"


@app.task(executor="process")
def stuck() -> None:
    current_job().data(b"begun")
    while True:
        time.sleep(0.01)


@app.task(executor="process")
def listening() -> None:
    current_job().data(b"begun")
    while True:
        current_job().heartbeat()
        time.sleep(0.01)


@app.task(executor="process")
def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@app.task(executor="process")
def leave() -> None:
    os._exit(7)


@app.task(executor="process")
def refuse() -> None:
    sys.exit("no")


@app.task(executor="process")
def comes_back_twice() -> str:
    return "child" if os.fork() == 0 else "parent"


@app.task(executor="process")
def terminates(*command: str) -> int:
    with subprocess.Popen(command) as program:
        program.terminate()
        return program.wait(20)


@app.task(executor="process")
def terminates_a_fork() -> int | None:
    fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    fork.start()
    fork.terminate()
    fork.join(20)
    return fork.exitcode


@app.task(executor="process")
def stuck_in_others() -> None:
    fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    fork.start()
    with subprocess.Popen(["sleep", "60"], close_fds=False) as program:
        current_job().data(b"%d %d" % (fork.pid or 0, program.pid))


@app.task(executor="process")
def dies_before_its_fork() -> None:
    if (fork := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    current_job().data(b"%d" % fork)
    os._exit(7)


@app.task(executor="process")
def waits(n: int) -> int:
    return square.submit(n).result()


@app.task(executor="process")
def waits_elsewhere() -> None:
    current_job().data(b"%d" % os.getpid())
    app.function("elsewhere").submit(b"").result()


@app.task(executor="process")
def waits_for_pid() -> list[int]:
    return [os.getpid(), pid.submit().result()]
