"""Worker processes whose event loops are blocked, or that are stopped: they are replaced, and only the job that blocks counts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, JobFailed

from .extension import ExtensionPeer
from .processes import node
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .processes import Node

pytestmark = pytest.mark.system

APP = """
import asyncio, os, pathlib, time
from mainspring import App, Retry, workflow

app = App()
here = pathlib.Path(__file__).parent

@app.task(retry=Retry(max_attempts=2, initial=0.1))
async def blocks() -> None:
    here.joinpath("blocks").touch()
    time.sleep(1000)

@app.task(retry=Retry(max_attempts=1))
async def waits_for(name: str) -> int:
    (here / f"waits {name} {os.getpid()}").touch()
    while not (here / name).exists():
        await asyncio.sleep(0.05)
    return os.getpid()

@app.task(retry=Retry(max_attempts=1))
def blocks_its_thread(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()

@app.workflow
async def loops() -> None:
    while True:
        pass

@app.workflow
async def adds(n: int) -> int:
    return n + await blocks_its_thread.step(0.0) * 0
"""
LIMIT = "3s"
TIMEOUT = 60


class Fleet:
    """A node, workers for `APP`, and a client."""

    def __init__(self, server: Node, workers: Node, directory: Path) -> None:
        self.server = server
        self.workers = workers
        self.directory = directory
        self.client = App(server.address)

    def submit(self, name: str, *args: Any) -> Any:
        return self.client.function(name).submit(json.dumps(args).encode())

    def attempt(self, job: Any) -> int:
        return int(job.info()["attempt"])

    def until_there(self, pattern: str) -> Path:
        eventually(lambda: any(self.directory.glob(pattern)), f"{pattern} exists", TIMEOUT)
        return next(self.directory.glob(pattern))

    def waiting_in(self, name: str) -> int:
        """Return the process that waits for a file, once it does."""
        return int(self.until_there(f"waits {name} *").name.split()[-1])

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.workers.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if event in line["event"]]


@contextlib.contextmanager
def running(directory: Path, *options: str) -> Iterator[Fleet]:
    (directory / "frozen_app.py").write_text(APP)
    with (
        node("serve", "--store", "memory://", "--gearman", "127.0.0.1:0", cwd=directory) as server,
        node("worker", "frozen_app.py", "--server", server.address, *options, cwd=directory, faces=()) as workers,
    ):
        fleet = Fleet(server, workers, directory)
        with contextlib.closing(fleet.client):
            yield fleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running(tmp_path_factory.mktemp("frozen"), "--processes", "2", "--frozen-after", LIMIT) as fleet:
        yield fleet


def test_a_blocking_coroutine_becomes_a_dead_letter_and_costs_others_no_attempt(fleet: Fleet) -> None:
    others = [fleet.submit("waits_for", "go-on") for _ in range(8)]
    fleet.waiting_in("go-on")
    with pytest.raises(JobFailed, match=r"task blocks has blocked the event loop .* at frozen_app.py:11") as failed:
        fleet.submit("blocks").result(TIMEOUT)
    assert (failed.value.type_name, failed.value.attempt) == ("WorkerFrozen", 2)
    assert "time.sleep(1000)" in (failed.value.traceback or "")
    (fleet.directory / "go-on").touch()
    for job in others:
        job.result(TIMEOUT)
    assert {fleet.attempt(job) for job in others} == {1}
    blocked = fleet.logged("the event loop is blocked")
    assert [line["blocked_by"] for line in blocked] == ["task blocks"] * 2
    assert "time.sleep(1000)" in blocked[0]["stack"]
    eventually(lambda: len(fleet.logged("frozen worker replaced")) == 2, "both are replaced", TIMEOUT)
    assert [line["left_out"] for line in fleet.logged("frozen worker replaced")] == [{"blocks": 0.5}, {"blocks": 1.0}]


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process, and let it go on afterwards if nothing has killed it."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_a_thread_may_block_for_longer(fleet: Fleet) -> None:
    before = len(fleet.logged("blocked"))
    job = fleet.submit("blocks_its_thread", 5.0)
    job.result(TIMEOUT)
    assert fleet.attempt(job) == 1
    assert len(fleet.logged("blocked")) == before


def test_a_stopped_process_is_killed_and_its_jobs_run_again(fleet: Fleet) -> None:
    job = fleet.submit("waits_for", "resumed")
    pid = fleet.waiting_in("resumed")
    with stopped(pid):
        eventually(lambda: len(list(fleet.directory.glob("waits resumed *"))) == 2, "it runs elsewhere", TIMEOUT)
    (fleet.directory / "resumed").touch()
    assert int(job.result(TIMEOUT)) != pid
    assert fleet.attempt(job) == 1
    assert [line["pid"] for line in fleet.logged("a worker process is frozen and is killed")] == [pid]


def test_a_loop_in_a_workflow_does_not_stop_other_runs(fleet: Fleet) -> None:
    looping = fleet.submit("loops")
    eventually(lambda: looping.info()["state"] == "running", "the run has begun", TIMEOUT)
    assert fleet.submit("adds", 7).result(TIMEOUT) == b"7"

    def blocked_by() -> list[str]:
        return [line["blocked_by"] for line in fleet.logged("the event loop is blocked")]

    eventually(lambda: "workflow loops" in blocked_by(), "its worker is replaced", TIMEOUT)
    client = fleet.client.connections.blocking()
    parked = client.call("workflows.show", {"key": looping.handle})["parked"]
    assert parked["kind"] == "losses"
    assert "workflow loops has blocked the event loop" in parked["message"]
    client.call("workflows.terminate", {"key": looping.handle})


def test_a_stop_does_not_wait_out_the_grace_for_frozen_processes(tmp_path: Path) -> None:
    """The jobs are given back uncounted, also the one that blocks."""
    with running(
        tmp_path, "--processes", "2", "--concurrency", "1", "--frozen-after", "10m", "--grace", "10m"
    ) as fleet:
        jobs = [fleet.submit("waits_for", "never"), fleet.submit("blocks")]
        with stopped(fleet.waiting_in("never")):
            fleet.until_there("blocks")
            assert fleet.workers.stop() == 0
        assert len(fleet.logged("the event loop is blocked")) == len(fleet.logged("is frozen and is killed")) == 1
        eventually(lambda: {job.info()["state"] for job in jobs} == {"pending"}, "they wait again", TIMEOUT)
        assert [fleet.attempt(job) for job in jobs] == [0, 0]


def test_a_stop_of_run_does_not_wait_out_the_grace_for_a_frozen_process(tmp_path: Path) -> None:
    (tmp_path / "frozen_app.py").write_text(APP)
    options = ("--frozen-after", "10m", "--grace", "10m", "--store", "memory://", "--gearman", "127.0.0.1:0")
    with node("run", "frozen_app.py", *options, cwd=tmp_path) as both, contextlib.closing(App(both.address)) as client:
        client.function("blocks").submit(b"[]")
        eventually((tmp_path / "blocks").exists, "it blocks", TIMEOUT)
        assert both.stop() == 0


def test_a_silent_worker_gets_nothing_and_is_disconnected_in_the_end(fleet: Fleet) -> None:
    with (
        contextlib.closing(ExtensionPeer(fleet.server.port)) as silent,
        contextlib.closing(ExtensionPeer(fleet.server.port)) as other,
        contextlib.closing(ExtensionPeer(fleet.server.port)) as client,
    ):
        client.extend()
        for worker in (silent, other):
            worker.extend()
            worker.register(b"g")
            worker.ready(5)
        assert silent.call("worker.beats", seconds=0.5) == {}
        workers = fleet.client.connections.blocking()
        eventually(lambda: "silent" in _states(workers.call("workers.list")), "it is silent", TIMEOUT)
        handles = [client.submit_new(b"g") for _ in range(4)]
        assert sorted(other.job().handle for _ in handles) == sorted(handles)
        eventually(lambda: "silent" not in _states(workers.call("workers.list")), "it is disconnected", TIMEOUT)
        with pytest.raises((ConnectionError, EOFError, AssertionError)):
            silent.call("worker.beats", seconds=0.5)


def _states(answer: dict[str, Any]) -> list[str]:
    return [worker["state"] for worker in answer["items"]]
