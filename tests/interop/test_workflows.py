"""Workflows beside other projects' programs: their workers do activities, and their clients start runs and get results."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.system.processes import node

from .libraries import BY_NAME, UPPER, Program, await_worker, command, jobs
from .servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

APP = """
from mainspring import App

app = App()


@app.workflow
async def shout(library: str, text: str) -> str:
    words = await app.function(f"{library}-upper").submit(text.encode())
    return words.decode() + "!"
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
