"""An App for tests whose processes import it."""

from __future__ import annotations

import os
import signal
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


@app.task(executor="process")
def telling() -> str:
    job = current_job()
    job.progress(1, 2)
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
