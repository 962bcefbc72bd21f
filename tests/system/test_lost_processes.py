"""Workers and nodes that are killed have events, and those that end in order have none."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING

import pytest
from tests.conformance.suite.driver import Store
from tests.conformance.suite.events import numbered, want
from tests.engines import sqlite_engine

from mainspring import App
from mainspring.event_log.types import NODE_DEAD, NODE_JOINED, WORKER_LOST
from mainspring.nodes.node_events import LEFT_OPEN

from .processes import node
from .servers import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from .processes import Node

pytestmark = pytest.mark.system

APP = """
import asyncio, os, pathlib
from mainspring import App, workflow

app = App()
here = pathlib.Path(__file__).parent

@app.task
async def waits(name: str) -> None:
    (here / f"{name} {os.getpid()}").touch()
    while not (here / name).exists():
        await asyncio.sleep(0.02)

@app.task
def twice(n: int) -> int:
    return 2 * n

@app.workflow
async def order(n: int) -> int:
    return await twice.submit(n)
"""


def test_what_is_killed_has_events(tmp_path: Path) -> None:
    (tmp_path / "lost_app.py").write_text(APP)
    store = Store(lambda: sqlite_engine(tmp_path / "jobs.db"), "before")
    want(store, "worker.*", "node.*")
    store.close()

    def serving() -> contextlib.AbstractContextManager[Node]:
        return node("serve", "--store", "sqlite:///jobs.db", "--name", "n1", "--gearman", "127.0.0.1:0", cwd=tmp_path)

    def started(name: str) -> int:
        eventually(lambda: any(tmp_path.glob(f"{name} *")), f"{name} has begun")
        return int(next(tmp_path.glob(f"{name} *")).name.split()[-1])

    with serving() as server:
        arguments = ("worker", "lost_app.py", "--server", server.address)
        with node(*arguments, cwd=tmp_path, faces=()) as workers, contextlib.closing(App(server.address)) as client:
            server.await_functions("waits", "twice")
            assert client.function("order").submit(b"[4]").result(30) == b"8"
            job = client.function("waits").submit(json.dumps(["ends"]).encode())
            started("ends")
            (tmp_path / "ends").touch()
            job.result(30)
            assert workers.stop() == 0
        with node(*arguments, cwd=tmp_path, faces=()) as workers:
            server.await_functions("waits")
            with contextlib.closing(App(server.address)) as client:
                job = client.function("waits").submit(json.dumps(["lost"]).encode())
                pid = started("lost")
                workers.signal(signal.SIGKILL)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                workers.wait()
                eventually(lambda: job.info()["state"] == "pending", "the job has gone back")
        server.signal(signal.SIGKILL)
        server.wait()
    with serving() as server:
        assert server.stop() == 0
    store = Store(lambda: sqlite_engine(tmp_path / "jobs.db"), "after")
    found = numbered(store)
    store.close()
    assert [(one.type, one.subject.rpartition("-")[2]) for one in found] == [
        (NODE_JOINED, "n1"),
        (WORKER_LOST, str(pid)),
        (NODE_DEAD, "n1"),
        (NODE_JOINED, "n1"),
        (NODE_JOINED, "after"),
    ]
    assert (found[1].fields["jobs"], found[1].fields["node"]) == (1, "n1")
    assert (found[2].fields["node"], found[2].fields["why"]) == ("n1", LEFT_OPEN)
