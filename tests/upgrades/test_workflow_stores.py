"""A store of an earlier version: its runs in flight end in this one.

`workflow_program` has the runs, and `workflow_scene` their states.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from mainspring import JobCancelled
from mainspring.client.environment import parse_address
from mainspring.faces.gearman.protocol import GearmanProtocol
from mainspring.ids import node_id
from mainspring.server.build import open_node
from mainspring.server.engines import build_engine
from mainspring.server.fleet import SystemClock
from mainspring.server.node import Shutdown
from mainspring.server.settings import ServerSettings, parse_store

from . import workflow_program as program
from .old import LAST, unpack

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT = 20.0
DAY_US = 86_400_000_000


class ShiftedClock(SystemClock):
    """A clock that is behind: the runs of the store were open for an hour and not for years."""

    shift = 0.0

    def wall(self) -> float:
        return super().wall() - self.shift


async def end_all(directory: Path) -> dict[str, Any]:
    """Open the store, connect workers, signal the runs that wait for it, and return all outcomes."""
    path = directory / "store.db"
    connection = apsw.Connection(str(path))
    started_us: Any = connection.execute("SELECT max(started_us) FROM runs").fetchall()[0][0]
    connection.close()
    clock = ShiftedClock()
    clock.shift = clock.wall() - started_us / 1e6 - 3700
    settings = ServerSettings(name=node_id("new"), store=parse_store(f"sqlite:///{path}"))
    engine = build_engine(settings.store, workflows=settings.workflows)
    built = await open_node(settings, engine, clock, Shutdown(clock, settings.process.grace))
    socket = str(directory / "s")
    server = await asyncio.get_running_loop().create_unix_server(lambda: GearmanProtocol(built.node.face), socket)
    address = f"unix:{socket}"
    workers = []
    for app in (program.app, program.elsewhere):
        app.connect_to(address)
        workers.append(app.worker(servers=[parse_address(address)]))
    working = [asyncio.create_task(worker.run()) for worker in workers]
    call = program.app.connections.aio().call
    outcomes: dict[str, Any] = {}
    try:
        for key in ("receives", "is_long"):
            await call("workflows.signal", {"key": key, "name": "go", "value": 7})
        async with asyncio.timeout(TIMEOUT):
            for name in program.RESULTS:
                outcomes[name] = await getattr(program, name).get(name).aresult()
            with pytest.raises(JobCancelled):
                await program.is_cancelled.get("is_cancelled").aresult()
        outcomes["closed"] = await program.receives.get("closed").aresult()
        outcomes["runs"] = (await call("workflows.list", {}))["items"]
        outcomes["history"] = (await call("workflows.history", {"key": "breaks_off", "native": True}))["items"]
        outcomes["versions"] = (await call("workflows.versions", {"type": "receives"}))["items"]
    finally:
        for worker in workers:
            worker.stop(now=True)
        await asyncio.gather(*working)
        server.close()
        await built.node.close()
    return outcomes


def test_runs_in_flight_end_in_the_new_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[tuple[str, int]] = []
    monkeypatch.setattr(program, "did", did)
    (tmp_path / "store.db").write_bytes(unpack(LAST.workflows))
    outcomes = asyncio.run(end_all(tmp_path))
    assert {name: outcomes[name] for name in program.RESULTS} == program.RESULTS
    assert outcomes["closed"] == program.RESULTS["receives"]
    statuses = {run["id"]: run["status"] for run in outcomes["runs"]}
    assert statuses == {**dict.fromkeys([*program.RESULTS, "closed"], "completed"), "is_cancelled": "cancelled"}
    assert {run["version"] for run in outcomes["runs"]} == {"1"}
    assert sorted(did) == program.EXECUTIONS, "nothing that was recorded runs again"
    marks = [event for event in outcomes["history"] if event["eventType"] == "MarkerRecorded"]
    results = [json.loads(event["markerRecordedEventAttributes"]["details"]) for event in marks]
    assert results == [2, 102], "one step by each version"
    (row,) = outcomes["versions"]
    assert (row["version"], row["open"], row["workers"]) == ("1", 0, 1)
