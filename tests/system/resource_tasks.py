"""Tasks that use resources, and write what they do with them to a file."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import json
import os
import time
from functools import cache

from mainspring import App, Retry, current_job

TOTAL = 3
app = App()
licences = app.resource("licence", total=TOTAL)
printers = app.resource("printer", items={"p1": {"colour"}, "p2": set()})
_numbers = itertools.count(1)
_RETRY = Retry(max_attempts=100, initial=0.01)


@cache
def _file() -> int:
    return os.open(os.environ["WORKFLOW_EFFECTS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def began() -> str:
    """Write a line about the slots that this job has; return the token of the execution."""
    job = current_job()
    token = f"{os.getpid()}.{next(_numbers)}"
    has = {one.name: one for one in (licences, printers) if any(row[0] == one.name for row in job.info.resources)}
    slots = {name: [job.resource(one).items, job.resource(one).number] for name, one in has.items()}
    _write([token, "begin", time.monotonic(), slots])
    return token


def ended(token: str) -> str:
    """Write a line about the end of an execution, and return its token."""
    _write([token, "end", time.monotonic(), {}])
    return token


def _write(row: list[object]) -> None:
    os.write(_file(), f"{json.dumps(row)}\n".encode())


@app.task(uses={licences: 1}, retry=_RETRY)
def small(seconds: float) -> str:
    token = began()
    time.sleep(seconds)
    return ended(token)


@app.task(uses={licences: 2, printers["colour"]: 1}, retry=_RETRY)
async def large(seconds: float) -> str:
    token = began()
    await asyncio.sleep(seconds)
    return ended(token)


@app.task(uses={printers: 1}, retry=_RETRY)
def letter(seconds: float) -> str:
    """Hold the interpreter lock, so that the worker process does nothing else meanwhile."""
    token = began()
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    return ended(token)
