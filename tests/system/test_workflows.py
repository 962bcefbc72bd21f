"""Workflows from end to end: a node on SQLite and a worker in this process, a client in a thread."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, workflow
from mainspring.faces.gearman.protocol import GearmanProtocol
from mainspring.ids import node_id
from mainspring.server.build import build_engine, open_node
from mainspring.server.clock import SystemClock
from mainspring.server.settings import ServerSettings, parse_store
from mainspring.server.shutdown import Shutdown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from mainspring.server.build import Built

pytestmark = pytest.mark.system


@contextlib.asynccontextmanager
async def running(app: App, directory: Path) -> AsyncIterator[Built]:
    """Run a node and a worker for an App."""
    clock = SystemClock()
    settings = ServerSettings(name=node_id("test"), store=parse_store(f"sqlite:///{directory / 'store.db'}"))
    built = await open_node(settings, build_engine(settings.store), clock, Shutdown(clock, settings.process.grace))
    try:
        socket = directory / "s"
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: GearmanProtocol(built.node.face), str(socket)
        )
        before = app.connect_to(f"unix:{socket}")
        worker = app.worker()
        working = asyncio.create_task(worker.run())
        try:
            yield built
        finally:
            worker.stop(now=True)
            await working
            app.connect_to(before)
            server.close()
    finally:
        await built.node.close()


def order_app(discount: int = 0) -> tuple[App, Any, Any, list[str]]:
    app = App()
    did: list[str] = []
    approved = app.signal("approved", dict)

    @app.task
    async def charge(number: int, cents: int) -> str:
        did.append("charge")
        return f"order {number} paid {cents}"

    @app.task
    def price(number: int) -> int:
        did.append("price")
        return number * 3

    @app.workflow
    async def order(number: int) -> dict[str, Any]:
        cents = await price.step(number)
        payment = await charge.submit(number, cents - discount)
        by = await approved.receive(timeout=timedelta(days=3))
        await workflow.sleep(timedelta(seconds=0.05))
        return {"payment": payment, "by": by["by"]}

    return app, order, approved, did


def test_a_run_with_a_step_an_activity_a_signal_and_a_timer(tmp_path: Path) -> None:
    app, order, approved, did = order_app()

    async def main() -> None:
        async with running(app, tmp_path):
            run = await order.options(unique="order-17").asubmit(17)
            await order.get("order-17").asignal(approved, {"by": "eva"})
            result = await asyncio.wait_for(run.aresult(), 20)
            assert result == {"payment": "order 17 paid 51", "by": "eva"}
            assert did == ["price", "charge"]

    asyncio.run(main())


def test_a_run_whose_code_has_changed_is_parked_until_the_code_fits(tmp_path: Path) -> None:
    async def begin() -> None:
        app, order, _, did = order_app()
        async with running(app, tmp_path):
            await order.options(unique="order-17").asubmit(17)
            await waits_for(order, "approved")
            assert did == ["price", "charge"]

    async def change() -> None:
        app, order, approved, did = order_app(discount=1)
        async with running(app, tmp_path):
            await order.get("order-17").asignal(approved, {"by": "eva"})
            details = await waits_for(order, "parked")
            assert details["parked"]["kind"] == "mismatch"
            assert details["parked"]["recorded"][details["parked"]["at"]] == "activity #1 charge [17,51]"
            assert details["parked"]["code"][details["parked"]["at"]] == "activity #1 charge [17,50]"
            assert did == []

    async def undo() -> None:
        app, order, _, did = order_app()
        async with running(app, tmp_path):
            await app.connections.aio().call("workflows.unpark", {"key": "order-17"})
            assert (await order.get("order-17").aresult())["payment"] == "order 17 paid 51"
            assert did == []

    for part in (begin, change, undo):
        asyncio.run(asyncio.wait_for(part(), 20))


async def waits_for(order: Any, text: str) -> Any:
    """Wait until the run waits for something; return its details."""
    while True:
        details = await order.get("order-17").adetails()
        if text in (details["waits_for"] or ""):
            return details
        await asyncio.sleep(0.01)
