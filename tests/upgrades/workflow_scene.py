"""The scene that a node of an earlier version leaves in a store: runs of `workflow_program`, each as far as it can come.

`make` runs it with that version's code: ``python workflow_scene.py DIRECTORY``, where the directory has the program. It ends as a
crash does.
"""
# mypy: ignore-errors
# The code uses the interfaces of that version.

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import workflow_program as program

from mainspring.client.environment import parse_address
from mainspring.faces.gearman.protocol import GearmanProtocol
from mainspring.ids import node_id
from mainspring.server.build import open_node
from mainspring.server.engines import build_engine
from mainspring.server.fleet import SystemClock
from mainspring.server.node import Shutdown
from mainspring.server.settings import ServerSettings, parse_store
from mainspring.worker.settings import WorkerSettings


async def play(directory: Path) -> None:
    """Start the runs, by the code of the version, and end when each has come as far as it can."""
    program.is_old.append(True)
    clock = SystemClock()
    settings = ServerSettings(name=node_id("old"), store=parse_store(f"sqlite:///{directory / 'store.db'}"))
    engine = build_engine(settings.store, workflows=settings.workflows)
    built = await open_node(settings, engine, clock, Shutdown(clock, 1))
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
    while "receives" not in {name.decode() for name in built.node.workflows.definitions.functions()}:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    for name in ("receives", "sleeps", "waits", "breaks_off", "has_defect", "is_long", "is_cancelled", "closed"):
        flow = program.receives if name == "closed" else getattr(program, name)
        await flow.options(id=name).asubmit(1)
    await program.comes_later.options(id="comes_later").asubmit(1)
    for number in range(2):
        await call("workflows.signal", key="comes_later", name="go", value=7, request=str(number))
    await call("workflows.signal", key="closed", name="go", value=7)
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
    asyncio.run(play(Path(sys.argv[1])))
