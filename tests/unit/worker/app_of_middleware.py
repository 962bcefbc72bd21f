"""An App with middleware, hooks and providers that processes import in tests. They append lines to the file of TRACE."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring import App, CurrentJob, Provide, Snooze, current_job

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

app = App()


def note(line: str) -> None:
    with Path(os.environ["TRACE"]).open("a") as file:
        file.write(f"{line}\n")


@app.on_worker_start(in_task_processes=False)
def in_the_worker() -> None:
    note("worker starts")


@app.on_worker_start
def pool() -> Iterator[None]:
    note("pool opens")
    yield
    note("pool closes")


@app.on_worker_start
async def fails_if_asked() -> None:
    await asyncio.sleep(0)
    if os.environ.get("TRACE_FAILS", f"not in {os.getpid()}") != f"not in {os.getpid()}":
        raise ConnectionError("no database")


@app.on_worker_stop
async def stopped() -> None:
    note("stop hook")


@app.middleware
def outer(job: CurrentJob) -> Iterator[None]:
    note(f"{job.function}: outer")
    try:
        yield
    except BaseException as error:
        note(f"{job.function}: outer {type(error).__name__}")
        if isinstance(error, LookupError):
            raise Snooze(60) from error
        raise
    else:
        note(f"{job.function}: outer ok")


@app.middleware
async def inner(job: CurrentJob) -> AsyncIterator[None]:
    await asyncio.sleep(0)
    try:
        yield
    finally:
        await asyncio.sleep(0)
        note(f"{job.function}: inner out")


async def engine() -> AsyncIterator[str]:
    note("engine opens")
    await asyncio.sleep(0)
    yield "engine"
    await asyncio.sleep(0)
    note("engine closes")


def session(of: str = Provide(engine, per="worker")) -> Iterator[str]:
    note("session opens")
    try:
        yield f"session of {of}"
    finally:
        note("session closes")


@app.task(executor="process")
def uses(db: str = Provide(session)) -> str:
    return db


@app.task(executor="process")
def fails(db: str = Provide(session)) -> None:
    raise ValueError(db)


@app.task(executor="process")
def missing() -> None:
    raise KeyError("none")


@app.task(executor="process")
def heeds(db: str = Provide(session)) -> None:
    current_job().data(b"begun")
    while True:
        current_job().heartbeat()
        time.sleep(0.01)


@app.task(executor="process")
def stuck(db: str = Provide(session)) -> None:
    current_job().data(b"begun")
    time.sleep(60)
