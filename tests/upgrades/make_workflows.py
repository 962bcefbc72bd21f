"""Creates the stores of `test_workflow_stores`: ``python -m tests.upgrades.make_workflows VERSION``, in a clone with its commit.

The code of that commit runs a node and a worker with `workflow_program` until each run is where it shall be, and ends as a crash
does. The file is part of the repository, so that the tests do not need the history of it.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .old import Version

HERE: Final = Path(__file__).parent
PROGRAM: Final = "workflow_program.py"


def main(version: Version) -> None:
    """Create the file of a version."""
    # `play` runs without this package.
    from .make import of_file, pack, unpack_commit

    with tempfile.TemporaryDirectory() as directory:
        unpack_commit(version, Path(directory))
        shutil.copy(HERE / PROGRAM, directory)  # its path is in the store
        environment = {**os.environ, "PYTHONPATH": f"{directory}/src:{directory}", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-P", __file__, directory]
        subprocess.run(command, check=True, cwd=directory, env=environment)
        version.workflows.write_bytes(pack(of_file(Path(directory, "store.db"))))


async def play(directory: Path) -> None:
    """Start the runs, by the code of the commit, and end when each has come as far as it can."""
    from mainspring.client.environment import parse_address
    from mainspring.faces.gearman.protocol import GearmanProtocol
    from mainspring.ids import node_id
    from mainspring.server.fleet import SystemClock
    from mainspring.server.node import Shutdown
    from mainspring.server.settings import ServerSettings, parse_store
    from mainspring.worker.settings import WorkerSettings

    build: Any = importlib.import_module("mainspring.server.build")  # of the commit, where it builds the engine too
    program: Any = importlib.import_module(PROGRAM.removesuffix(".py"))

    program.is_old.append(True)
    clock = SystemClock()
    settings = ServerSettings(name=node_id("old"), store=parse_store(f"sqlite:///{directory / 'store.db'}"))
    engine = build.build_engine(settings.store, workflows=settings.workflows)
    built = await build.open_node(settings, engine, clock, Shutdown(clock, 1))
    socket = str(directory / "s")
    server = await asyncio.get_running_loop().create_unix_server(lambda: GearmanProtocol(built.node.face), socket)
    address = f"unix:{socket}"
    app, elsewhere = program.app, program.elsewhere
    app.connect_to(address)
    elsewhere.connect_to(address)
    worker = app.worker(WorkerSettings(name="old"), servers=[parse_address(address)])
    working = asyncio.create_task(worker.run())

    async def call(method: str, **params: Any) -> Any:
        return await app.connections.aio().call(method, params)

    async def until(key: str, done: Any) -> None:
        while not done(await call("workflows.show", key=key)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    assert built.node.workflows is not None
    while "receives" not in {name.decode() for name in built.node.workflows.functions()}:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    for name in ("receives", "sleeps", "waits", "breaks_off", "has_defect", "is_long", "is_cancelled", "closed"):
        flow = program.receives if name == "closed" else getattr(program, name)
        await flow.options(id=name).asubmit(1)
    await program.comes_later.options(id="comes_later").asubmit(1)
    for number in range(2):
        await call("workflows.signal", key="comes_later", name="go", input=7, request=str(number))
    await call("workflows.signal", key="closed", name="go", input=7)
    await until("closed", lambda shown: shown["status"] == "completed")
    for key in ("receives", "is_long"):
        await until(key, lambda shown: shown["receives"] == ["go"])
    await until("sleeps", lambda shown: shown["timers"] and not shown["activities"])
    await until("waits", lambda shown: shown["activities"])
    await until("breaks_off", lambda shown: shown["steps"] == ["hold"])
    await until("has_defect", lambda shown: shown["parked"])
    await until("is_cancelled", lambda shown: shown["activities"] and shown["activities"][0]["state"] == "running")
    await call("workflows.cancel", key="is_cancelled")
    del server, working
    os._exit(0)


if __name__ == "__main__":
    if Path(sys.argv[1]).is_dir():
        asyncio.run(play(Path(sys.argv[1])))
    else:
        from .old import BEFORE_HTTP_API, WORKFLOW_CORE

        main({version.name: version for version in (WORKFLOW_CORE, BEFORE_HTTP_API)}[sys.argv[1]])
