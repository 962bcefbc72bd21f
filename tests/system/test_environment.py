"""Nodes and workers in unusual surroundings: what they inherit, and what user code sets for its process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from typing import TYPE_CHECKING

import pytest

from mainspring import App

from .processes import command, started

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

TIMEOUT = 60.0
OPTIONS = ("--store", "memory://", "--gearman", "127.0.0.1:0")

TALKATIVE = """
import logging, sys
from mainspring import App

app = App()

def talk(lines: int) -> int:
    for number in range(lines):
        logging.info("line %d of a task that logs very much", number)
        print("and writes to standard error", file=sys.stderr)
    return lines

@app.task
def thread(lines: int) -> int:
    return talk(lines)

@app.task
async def coroutine(lines: int) -> int:
    return talk(lines)

@app.task(executor="process")
def process(lines: int) -> int:
    return talk(lines)
"""


def test_a_log_that_nobody_reads_stops_neither_tasks_nor_the_stop(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(TALKATIVE)
    reader, log = os.pipe()
    fcntl.fcntl(log, fcntl.F_SETPIPE_SZ, 4096)
    lines = 4_000
    try:
        with (
            started(command("run", "app.py", *OPTIONS), cwd=tmp_path, stderr=log) as running,
            contextlib.closing(App(running.address)) as app,
        ):
            tasks = [app.function(name) for name in ("thread", "coroutine", "process")]
            for task in tasks:
                assert task.submit(lines).result(timeout=TIMEOUT) == b"%d" % lines
            text = _read_until(reader, b"lines of this log were dropped")
            assert tasks[0].submit(lines).result(timeout=TIMEOUT) == b"%d" % lines
            assert running.stop() == 0
    finally:
        os.close(log)
        os.close(reader)
    notice = next(line for line in text.splitlines() if b"lines of this log were dropped" in line)
    assert json.loads(notice)["lines"] > 1000


def _read_until(descriptor: int, mark: bytes) -> bytes:
    found = [b""]

    def read() -> None:
        while mark not in found[0] or not found[0].endswith(b"\n"):
            found[0] += os.read(descriptor, 65536)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(TIMEOUT)
    assert mark in found[0]
    return found[0]
