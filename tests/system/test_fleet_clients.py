"""Clients and workers, Mainspring's own and those of other projects, keep working when they use several nodes of a fleet."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from tests import commands
from tests.interop.libraries import BY_NAME, FAIL, PROGRESS, RAISE, UPPER, Library, Program, await_worker, command, jobs
from tests.interop.packets import Kind, encode
from tests.system.extension import ExtensionKind

from mainspring import App, Data, Progress, Warned

from .fleet import Fleet, FleetNode, ForkServer, addresses
from .processes import environment, mainspring
from .servers import eventually
from .stores import STORES, on_each_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mainspring.client.outcomes import JobEvent

    from .stores import Store

BINARY = bytes(range(256)) + b"ab\0\0cd\xff"
PROGRAMS = ("tools", "libgearman", "perl", "php")
"""Widely used programs; the others are tested with one node."""

TASKS = """
import time
from pathlib import Path
from mainspring import App, Retry

app = App()

@app.task
def add(a: int, b: int) -> int:
    return a + b

@app.task(retry=Retry(max_attempts=5, initial=0.01))
def hold(path: str) -> str:
    Path(path).touch()
    while not Path(path + ".go").exists():
        time.sleep(0.005)
    return "held"
"""


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer() as fork_server:
        yield fork_server


@pytest.fixture(scope="module", params=STORES)
def shared(
    fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[list[FleetNode]]:
    """Return two nodes that the tests of other projects' programs share."""
    with (
        STORES[request.param](request.getfixturevalue) as store,
        Fleet(fork_server, tmp_path_factory.mktemp("fleet"), store.url, lease=15) as fleet,
    ):
        yield fleet.start_many("n1", "n2")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("library", [BY_NAME[name] for name in PROGRAMS], ids=PROGRAMS)
def test_a_program_calls_a_worker_at_another_node(
    shared: list[FleetNode], library: Library, programs: Path, tmp_path: Path, stack: ExitStack
) -> None:
    client_node, worker_node = shared
    line = command(library, programs)
    worker = Program([*line, str(worker_node.port), "worker", library.name], tmp_path / "worker.log")
    stack.callback(worker.kill)
    with worker_node.peer() as peer:
        await_worker(peer, *[f"{library.name}-{name}" for name in library.functions])
    calls = [(f"{library.name}-{UPPER}", BINARY), (f"{library.name}-{UPPER}", b"again")]
    calls += [(f"{library.name}-{name}", b"x") for name in (FAIL, PROGRESS, RAISE) if name in library.functions]
    client = Program([*line, str(client_node.port), "client", "do", *jobs(*calls)], tmp_path / "client.log")
    stack.callback(client.kill)
    lines = client.finish()
    assert f"{library.name}-{UPPER} complete {BINARY.upper().hex()}" in lines
    assert f"{library.name}-{UPPER} complete {b'AGAIN'.hex()}" in lines
    if FAIL in library.functions:
        assert f"{library.name}-{FAIL} failed" in lines
    if PROGRESS in library.functions:
        for kind, data in (("data", b"part"), ("warning", b"careful")):
            if kind in library.progress:
                assert f"{library.name}-{PROGRESS} {kind} {data.hex()}" in lines
        if "status" in library.progress:
            assert any(line.startswith(f"{library.name}-{PROGRESS} status ") for line in lines)
        assert f"{library.name}-{PROGRESS} complete {library.whole.hex()}" in lines
    if RAISE in library.functions and library.exceptions and not library.fails_after_raising:
        assert f"{library.name}-{RAISE} exception {library.raised.hex()}" in lines


@pytest.mark.parametrize("library", [BY_NAME[name] for name in PROGRAMS], ids=PROGRAMS)
def test_a_background_job_of_a_program_runs_at_another_node(
    shared: list[FleetNode], library: Library, programs: Path, tmp_path: Path, stack: ExitStack
) -> None:
    client_node, worker_node = shared
    name = f"{library.name}-later"
    order = [*command(library, programs), str(client_node.port), "client", "background", *jobs((name, b"payload"))]
    assert Program(order, tmp_path / "client.log").finish() == [f"{name} created"]
    worker = stack.enter_context(worker_node.worker(name.encode()))
    job = worker.job()
    assert job.payload == b"payload"
    assert worker.settle_as(job, b"succeeded") == b"recorded"


def test_the_progress_of_a_job_at_another_node_is_streamed(shared: list[FleetNode], stack: ExitStack) -> None:
    client_node, worker_node = shared
    app = App(f"127.0.0.1:{client_node.port}")
    stack.callback(app.close)
    worker = stack.enter_context(worker_node.worker(b"talk"))
    job = app.function("talk").submit(b"")
    assigned = worker.job()
    events: list[JobEvent] = []
    streaming = threading.Thread(target=lambda: events.extend(job.stream(timeout=60)), daemon=True)
    first = job.stream(timeout=60)
    begun = threading.Thread(target=next, args=(first,), daemon=True)
    streaming.start()
    begun.start()
    while begun.is_alive():  # data is dropped while no client waits
        worker.write(encode(Kind.WORK_DATA, assigned.handle, b"early"))
        begun.join(0.05)
    worker.write(encode(Kind.WORK_WARNING, assigned.handle, b"careful"))
    worker.write(encode(ExtensionKind.PROGRESS_TEXT, assigned.handle, b"half"))
    worker.write(encode(Kind.WORK_STATUS, assigned.handle, b"1", b"2"))
    worker.write(encode(Kind.WORK_DATA, assigned.handle, BINARY))
    assert worker.settle_as(assigned, b"succeeded", b"done") == b"recorded"
    rest = [event for event in first if event != Data(b"early")]
    streaming.join(60)
    assert rest == [Warned(b"careful"), Progress(1, 2, "half"), Data(BINARY)]
    assert [event for event in events if event != Data(b"early")] == rest
    assert job.result(0) == b"done"


# ---- several servers


class TwoNodes:
    """Two nodes, a worker process and an App that use both."""

    def __init__(self, fleet: Fleet, directory: Path, stack: ExitStack) -> None:
        self.nodes = fleet.start_many("n1", "n2")
        self.directory = directory
        tasks = directory / "tasks.py"
        tasks.write_text(TASKS)
        self._worker = [sys.executable, "-m", "mainspring", "worker", str(tasks), "--server", addresses(self.nodes)]
        self._stack = stack

    def work(self) -> None:
        """Start a worker, which may be connected to one of the nodes or both."""
        log = self._stack.enter_context((self.directory / "worker.log").open("wb"))
        process = commands.start(self._worker, cwd=self.directory, env=environment(), stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

    def holder(self) -> FleetNode | None:
        """Return the node whose worker runs a job."""
        return next((node for node in self.nodes if node.is_alive and node.status()["jobs"]["running"]), None)


@pytest.fixture
def two_nodes(fork_server: ForkServer, tmp_path: Path, store: Store, stack: ExitStack) -> TwoNodes:
    fleet = stack.enter_context(Fleet(fork_server, tmp_path, store.url, lease=1.5))
    return TwoNodes(fleet, tmp_path, stack)


@on_each_store
def test_workers_and_clients_move_to_another_node_when_theirs_is_killed(
    two_nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stack: ExitStack
) -> None:
    monkeypatch.setenv("MAINSPRING_SERVER", addresses(two_nodes.nodes))
    app = App()
    stack.callback(app.close)
    two_nodes.work()
    marker = tmp_path / "held"
    waited: list[bytes] = []
    job = app.function("hold").submit(path=str(marker))
    waiting = threading.Thread(target=lambda: waited.append(job.result(timeout=90)), daemon=True)
    waiting.start()
    eventually(marker.exists, "the job runs")
    # The killed node assigned the job, and may also be the client's: worker and client must find the other node.
    eventually(two_nodes.holder, "a node reports the running job")
    holder = two_nodes.holder()
    assert holder is not None
    marker.unlink()
    holder.kill()
    later = App()
    stack.callback(later.close)
    assert later.function("add").submit(a=1, b=2).result(timeout=30) == b"3"
    eventually(marker.exists, "the job runs again")
    marker.with_name("held.go").touch()
    waiting.join(60)
    assert waited == [b'"held"']


@on_each_store
def test_commands_use_another_node_when_the_first_is_dead(two_nodes: TwoNodes, tmp_path: Path) -> None:
    n1, n2 = two_nodes.nodes
    for _ in range(2):
        submitted = mainspring(
            "submit", "f", "payload", "--background", "--server", addresses(two_nodes.nodes), cwd=tmp_path
        )
        assert submitted.returncode == 0, submitted.stderr
        n1.kill()
    with n2.worker(b"f", places=2) as worker:
        worker.socket.settimeout(30)
        assert {worker.job().payload for _ in range(2)} == {b"payload"}
