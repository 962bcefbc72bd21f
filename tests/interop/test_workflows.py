"""Workflows beside other projects' programs: their workers do activities, and their clients start runs and get results."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from mainspring.client.blocking import Client
from mainspring.client.environment import parse_address
from tests.system.processes import node

from .libraries import BY_NAME, UPPER, Program, await_worker, command, jobs
from .packets import Kind
from .servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

APP = """
from mainspring import App, workflow

app = App()
go = app.signal("go", int)


@app.workflow
async def shout(library: str, text: str) -> str:
    words = await app.function(f"{library}-upper").submit(text.encode())
    return words.decode() + "!"


@app.workflow
async def counting() -> None:
    for done in range(3):
        await go.receive()
        workflow.progress(done + 1, 3, "counting")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a node with a worker that decides, in place of the servers that other modules share."""
    directory = tmp_path_factory.mktemp("workflows")
    (directory / "app.py").write_text(APP)
    with node("run", "app.py", "--gearman", "127.0.0.1:0", "--store", "memory://", cwd=directory) as running:
        started = Server("mainspring", running.port, running.process, running.log)
        yield started
        started.disconnect()


@pytest.mark.parametrize("name", ["php", "perl"])
def test_a_worker_does_an_activity_and_a_client_gets_the_result_of_a_run(
    server: Server, name: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:

        def start(*arguments: str) -> Program:
            line = [*command(BY_NAME[name], tmp_path), str(server.port), *arguments]
            program = Program(line, tmp_path / f"{arguments[0]}.log")
            stack.callback(program.kill)
            return program

        start("worker", name)
        await_worker(server.peer(), f"{name}-{UPPER}")
        client = start("client", "do", *jobs(("shout", b'["%b", "land ahoy"]' % name.encode())))
        result = b'"LAND AHOY!"'
        assert client.finish() == [f"shout complete {result.hex()}"]


def test_a_foreground_client_gets_the_progress_of_a_run(server: Server) -> None:
    with server.peer() as client, closing(Client([parse_address(f"127.0.0.1:{server.port}")])) as admin:
        await_worker(server.peer(), "counting@1 (decisions)")
        handle = client.submit(b"counting", b"", b"")
        for done in (b"1", b"2", b"3"):
            admin.call("workflows.signal", {"key": handle.decode(), "name": "go", "value": 1})
            assert client.expect(Kind.WORK_STATUS) == (handle, done, b"3")
        assert client.expect(Kind.WORK_COMPLETE) == (handle, b"")
