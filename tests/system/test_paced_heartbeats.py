"""Heartbeats of jobs whose code holds the interpreter lock for three times the timeout, in each kind of executor.

A call by `ctypes.PyDLL` keeps the lock, as a long `pow` of large integers or a regular expression does, and for an exact time.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App

from .processes import mainspring, node
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .processes import Node

pytestmark = pytest.mark.system

TIMEOUT = 60
APP = """
import asyncio, ctypes, os, pathlib, time
from mainspring import App

app = App()
here = pathlib.Path(__file__).parent
c = ctypes.PyDLL(None)

def hold(kind: str) -> int:
    with (here / "held").open("a") as file:
        print(kind, os.getpid(), file=file)
    c.sleep(3)
    return os.getpid()

@app.task(heartbeat="1s")
async def coroutine() -> int:
    return hold("coroutine")

@app.task(heartbeat="1s")
def thread() -> int:
    return hold("thread")

@app.task(heartbeat="1s", executor="process")
def process() -> int:
    return hold("process")

@app.task(heartbeat="3s")
def computes() -> int:
    until = time.monotonic() + 9
    while time.monotonic() < until:
        sum(range(1000))
    return os.getpid()

@app.task(heartbeat="1s")
async def waits(name: str) -> int:
    (here / f"waits {name} {os.getpid()}").touch()
    while not (here / name).exists():
        await asyncio.sleep(0.02)
    return os.getpid()
"""


class Fleet:
    """A node, two worker processes for `APP`, and a client."""

    def __init__(self, server: Node, workers: Node, directory: Path) -> None:
        self.server = server
        self.workers = workers
        self.directory = directory
        self.client = App(server.address)

    def submit(self, name: str, *args: Any) -> Any:
        return self.client.function(name).submit(json.dumps(args).encode())

    def held(self, kind: str) -> list[int]:
        """Return the processes that have run the task of this name."""
        lines = (self.directory / "held").read_text().splitlines()
        return [int(line.split()[1]) for line in lines if line.split()[0] == kind]

    def call(self, method: str, **params: Any) -> Any:
        return self.client.connections.blocking().call(method, params)

    def outcomes(self, job: Any) -> list[tuple[int, str]]:
        """Return the number of each attempt of a job, and how it has ended."""
        attempts: Sequence[dict[str, Any]] = self.call("jobs.attempts", handle=job.handle)["attempts"]
        return [(one["number"], one["outcome"]) for one in attempts]

    def pids(self) -> list[int]:
        """Return the worker processes that live now."""
        names = [one["name"] for one in self.call("workers.list")["items"]]
        return [int(name.rpartition("-")[2]) for name in names]

    def waiting_in(self, name: str) -> list[int]:
        """Return the processes that have waited for a file."""
        return [int(path.name.split()[-1]) for path in self.directory.glob(f"waits {name} *")]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("paced")
    (directory / "paced_app.py").write_text(APP)
    with (
        node("serve", "--store", "memory://", "--gearman", "127.0.0.1:0", cwd=directory) as server,
        node(
            "worker", "paced_app.py", "--server", server.address, "--processes", "2", cwd=directory, faces=()
        ) as workers,
    ):
        fleet = Fleet(server, workers, directory)
        server.await_functions("coroutine", "thread", "process", "computes", "waits")
        with contextlib.closing(fleet.client):
            yield fleet


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
def test_a_holder_of_the_lock_loses_its_job_honestly_and_gets_a_process_of_its_own(fleet: Fleet, kind: str) -> None:
    """The node gets nothing from the process: it gives the job to another one, and refuses the late result."""
    job = fleet.submit(kind)
    result = int(job.result(TIMEOUT))
    assert fleet.outcomes(job) == [(1, "lost"), (1, "lost"), (1, "succeeded")], "no loss counts as an attempt"
    first, second, alone = fleet.held(kind)
    assert result == alone
    assert len({first, second, alone}) == 3, "the first two held the lock at the same time, in two processes"
    assert not {first, second} - set(fleet.pids()), "neither process was killed"


def test_a_process_of_its_own_keeps_its_job(fleet: Fleet) -> None:
    job = fleet.submit("process")
    assert [int(job.result(TIMEOUT))] == fleet.held("process")
    assert fleet.outcomes(job) == [(1, "succeeded")]


def test_threads_that_compute_keep_their_jobs(fleet: Fleet) -> None:
    jobs = [fleet.submit("computes") for _ in range(4)]
    for job in jobs:
        job.result(TIMEOUT)
    assert {tuple(fleet.outcomes(job)) for job in jobs} == {((1, "succeeded"),)}


def test_the_neighbours_of_a_holder_run_elsewhere_and_it_costs_them_no_attempt(fleet: Fleet) -> None:
    neighbours = [fleet.submit("waits", "neighbours") for _ in range(6)]
    eventually(lambda: len(set(fleet.waiting_in("neighbours"))) == 2, "each process has some", TIMEOUT)
    fleet.submit("thread").result(TIMEOUT)
    (fleet.directory / "neighbours").touch()
    for job in neighbours:
        job.result(TIMEOUT)
    ends = [fleet.outcomes(job) for job in neighbours]
    assert all(outcomes[-1] == (1, "succeeded") for outcomes in ends)
    assert all(set(outcomes[:-1]) <= {(1, "lost")} for outcomes in ends)
    assert any(len(outcomes) > 1 for outcomes in ends)


def test_the_figures_are_shown(fleet: Fleet) -> None:
    jobs = [fleet.submit("waits", "figures") for _ in range(4)]

    def items() -> int:
        workers = fleet.call("workers.list")["items"]
        found = [fleet.call("workers.show", worker=one["id"])["pace"] for one in workers]
        return sum(one["items"] for one in found if one is not None)

    eventually(lambda: items() == 4 + 2 * 2, "the jobs, the connections and the figures themselves", TIMEOUT)
    (fleet.directory / "figures").touch()
    for job in jobs:
        job.result(TIMEOUT)
    worker = fleet.call("workers.list")["items"][0]["id"]
    shown = mainspring("workers", "show", worker, "--server", fleet.server.address, cwd=fleet.directory)
    (line,) = [line for line in shown.stdout.decode().splitlines() if line.startswith("pace")]
    assert "of 1000 a second, late by" in line
    assert "0 refused" in line
