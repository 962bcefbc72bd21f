"""A task that crashes its process fails only its own jobs."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import pytest

from mainspring import App, JobFailed

from .processes import is_alive, node
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .processes import Node

pytestmark = pytest.mark.system

APP = """
import asyncio, os, pathlib, signal, time
from mainspring import App, Retry

app = App()

@app.task
def poison() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)

@app.task(retry=Retry(max_attempts=3, initial=0.1))
def innocent(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()

@app.task(retry=Retry(max_attempts=1))
async def waits(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()
"""
STORE_OPTIONS = ("--gearman", "127.0.0.1:0", "--store", "sqlite:///jobs.db")


@pytest.fixture
def node_and_workers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """Run a server and workers; ``run`` is both in one."""
    (tmp_path / "app.py").write_text(APP)
    if request.param == "run":
        with node("run", "app.py", *STORE_OPTIONS, cwd=tmp_path) as both:
            yield both, both
        return
    options = ("--processes", request.param, "--grace", "1s")
    with (
        node("serve", *STORE_OPTIONS, cwd=tmp_path) as server,
        node("worker", "app.py", "--server", server.address, *options, cwd=tmp_path, faces=()) as workers,
    ):
        yield server, workers


@pytest.mark.parametrize("node_and_workers", ["1", "2", "run"], indirect=True)
def test_a_crashing_task_ends_as_a_dead_letter_and_costs_other_jobs_no_attempt(
    node_and_workers: tuple[Node, Node],
) -> None:
    server, workers = node_and_workers
    with contextlib.closing(App(server.address)) as client:
        names = ["poison", *["innocent", "waits"] * 8]
        jobs = [client.function(name).submit(b"[]" if name == "poison" else b"[0.3]") for name in names]
        with pytest.raises(JobFailed, match="was killed by SIGSEGV"):
            jobs[0].result(60)
        for job in jobs[1:]:
            job.result(60)
        assert {job.info()["attempt"] for job in jobs} == {1}, "jobs that were lost with it do not count the attempt"
    assert workers.process.poll() is None
    log = workers.log.read_text()
    assert log.count('"worker ended"') == 2, log
    assert '"left_out": {' in log


@pytest.mark.parametrize("node_and_workers", ["1"], indirect=True)
def test_a_worker_process_that_is_killed_is_replaced_and_no_process_outlives_its_supervisor(
    node_and_workers: tuple[Node, Node],
) -> None:
    server, workers = node_and_workers
    with contextlib.closing(App(server.address)) as client:
        first = int(client.function("waits").submit(b"[0]").result(30))
        os.kill(first, signal.SIGKILL)
        second = int(client.function("waits").submit(b"[0]").result(30))
        assert second not in {first, workers.process.pid}
        workers.process.kill()
        workers.wait()
        eventually(lambda: not is_alive(second), "the worker process ends")
