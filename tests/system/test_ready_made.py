"""Programs, an HTTP service and Dask as work of real workers: the work survives them, and ends when its job is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import dask
import distributed
import pytest
from tests.unit.elsewhere.a_service import Asked, Service, serving
from tests.unit.elsewhere.test_processes import Host, await_end

from mainspring import App, JobCancelled
from mainspring.elsewhere import ProcessMeta

from .processes import node
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .processes import Node

pytestmark = pytest.mark.system

LIMIT = 30
APP = """
import operator, os
from mainspring import App
from mainspring.elsewhere import Command, DaskMeta, DaskWork, HttpWork, ProcessMeta, Subprocess

app = App()

@app.external(every="0.1s")
class encode(Subprocess):
    directory = os.environ["PROGRAMS"]

    async def submit(self, args: list[str], key: str) -> ProcessMeta:
        return await self.start(Command(args), key)

render = app.external(every="0.1s", name="render")(HttpWork(
    os.environ["SERVICE"],
    submit="POST /jobs",
    status="GET /jobs/{id}",
    cancel="DELETE /jobs/{id}",
    networks=("127.0.0.0/8",),
))

@app.external(every="0.1s")
class multiply(DaskWork):
    scheduler = os.environ["SCHEDULER"]

    async def submit(self, args: list[int], key: str) -> DaskMeta:
        return await self.start(operator.mul, *args, key=key)
"""


class Fleet:
    """A node, the directory of programs, a service, and a Dask cluster."""

    def __init__(self, server: Node, directory: Path, service: Service, scheduler: str) -> None:
        self.server = server
        self.directory = directory
        self.service = service
        self.host = Host(directory / "programs")
        self.client = App(server.address)
        self._variables = {"PROGRAMS": str(self.host.root), "SERVICE": service.url, "SCHEDULER": scheduler}

    @contextlib.contextmanager
    def workers(self) -> Iterator[Node]:
        """Run a worker process of `APP`."""
        arguments = ("worker", "ready_app.py", "--server", self.server.address)
        with node(*arguments, cwd=self.directory, faces=(), worker=True, **self._variables) as workers:
            self.server.await_functions("encode", "render", "multiply", "encode.cancel")
            yield workers

    def kill_workers(self, workers: Node) -> None:
        """Kill the worker processes and their supervisor."""
        names = [one["name"] for one in self.client.connections.blocking().call("workers.list", {})["items"]]
        workers.signal(signal.SIGKILL)
        for pid in {int(name.rpartition("-")[2]) for name in names}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        workers.wait()

    def submit(self, name: str, argument: Any) -> Any:
        return self.client.function(name).submit(json.dumps([argument]).encode())

    def program(self) -> ProcessMeta:
        """Await a started program, and return it."""
        eventually(lambda: list(self.host.root.glob("*/started")), "the program has started")
        (path,) = self.host.root.glob("*/started")
        return ProcessMeta(self.host.files.host, self.host.files.boot, path.parent.name)


@contextlib.contextmanager
def in_a_thread() -> Iterator[Service]:
    """Serve in a loop of another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    stack = contextlib.AsyncExitStack()
    try:
        yield asyncio.run_coroutine_threadsafe(stack.enter_async_context(serving()), loop).result(LIMIT)
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(LIMIT)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    kind: Any = distributed.LocalCluster
    with dask.config.set({"temporary-directory": str(tmp_path_factory.mktemp("dask"))}):
        options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
        with kind(**options, host="127.0.0.1", protocol="tcp://", worker_dashboard_address=":0") as cluster:
            yield cluster.scheduler_address


@pytest.fixture
def fleet(tmp_path: Path, scheduler: str) -> Iterator[Fleet]:
    (tmp_path / "ready_app.py").write_text(APP)
    os.mkfifo(tmp_path / "gate")
    with (
        node("serve", "--store", "sqlite:///jobs.db", "--gearman", "127.0.0.1:0", cwd=tmp_path) as server,
        in_a_thread() as service,
    ):
        fleet = Fleet(server, tmp_path, service, scheduler)
        with contextlib.closing(fleet.client):
            yield fleet
        fleet.host.end_all()


def test_each_kind_gives_its_result(fleet: Fleet) -> None:
    with fleet.workers():
        printed, product, rendered = (
            fleet.submit("encode", ["echo", "hello"]),
            fleet.submit("multiply", [6, 7]),
            fleet.submit("render", {"scene": 1}),
        )
        assert printed.result(LIMIT) == b'"hello\\n"'
        assert product.result(LIMIT) == b"42"
        eventually(lambda: fleet.service.jobs, "the service has the job")
        fleet.service.jobs["job/1"] |= {"state": "done", "result": "image"}
        assert rendered.result(LIMIT) == b'"image"'


def test_a_program_survives_the_kill_of_its_worker(fleet: Fleet) -> None:
    script = f"echo run >> {fleet.directory}/runs; read x < {fleet.directory}/gate; echo $x"
    with fleet.workers() as workers:
        job = fleet.submit("encode", ["sh", "-c", script])
        program = fleet.program()
        fleet.kill_workers(workers)
    started = fleet.host.started(program)
    with fleet.workers():
        (fleet.directory / "gate").write_text("alive\n")
        assert job.result(LIMIT) == b'"alive\\n"'
    await_end(started["keeper"], started["keeper_start"])
    assert (fleet.directory / "runs").read_text() == "run\n"


def test_a_program_goes_on_while_its_worker_is_replaced_in_order(fleet: Fleet) -> None:
    script = f"echo run >> {fleet.directory}/runs; read x < {fleet.directory}/gate; echo $x"
    with fleet.workers() as workers:
        job = fleet.submit("encode", ["sh", "-c", script])
        fleet.program()
        assert workers.stop() == 0
    with fleet.workers():
        (fleet.directory / "gate").write_text("alive\n")
        assert job.result(LIMIT) == b'"alive\\n"'
    assert (fleet.directory / "runs").read_text() == "run\n"


def test_a_service_has_one_job_if_the_worker_dies_before_the_answer(fleet: Fleet) -> None:
    done = threading.Event()
    kept: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def keep_the_answer(_: Asked, writer: asyncio.StreamWriter) -> bool:
        killed = asyncio.Event()
        kept.append((asyncio.get_running_loop(), killed))
        done.set()
        await killed.wait()
        writer.transport.abort()
        return True

    fleet.service.fault = keep_the_answer
    with fleet.workers() as workers:
        job = fleet.submit("render", {"scene": 1})
        assert done.wait(LIMIT)
        fleet.kill_workers(workers)
    ((loop, killed),) = kept
    loop.call_soon_threadsafe(killed.set)
    fleet.service.fault = None
    fleet.service.jobs["job/1"] |= {"state": "done", "result": "image"}
    with fleet.workers():
        assert job.result(LIMIT) == b'"image"'
    posts = [asked.headers["idempotency-key"] for asked in fleet.service.asked if asked.method == "POST"]
    assert len(posts) == 2
    assert len(set(posts)) == len(fleet.service.jobs) == 1


def test_a_cancelled_job_ends_its_work(fleet: Fleet) -> None:
    with fleet.workers():
        encoding = fleet.submit("encode", ["sh", "-c", "sleep 1000 & wait"])
        rendering = fleet.submit("render", {"scene": 1})
        program = fleet.program()
        eventually(lambda: fleet.service.jobs, "the service has the job")
        started = fleet.host.started(program)
        for job in (encoding, rendering):
            job.cancel()
            with pytest.raises(JobCancelled):
                job.result(LIMIT)
        await_end(started["pid"], started["start"])
        eventually(lambda: fleet.service.jobs["job/1"]["state"] == "cancelled", "the service has cancelled it")
