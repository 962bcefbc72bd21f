"""Workflows from end to end: a node on SQLite and a worker in this process, a client in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from base64 import b64encode
from datetime import timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from mainspring import (
    App,
    ConflictError,
    HeldSlots,
    JobCancelled,
    JobTimedOut,
    NotFoundError,
    RefusedError,
    UsageError,
    workflow,
)
from mainspring.cli import main as cli
from mainspring.cli.options import ServerOptions
from mainspring.client.blocking import Client
from mainspring.client.environment import parse_address
from mainspring.faces.gearman.protocol import GearmanProtocol
from mainspring.ids import node_id
from mainspring.quantities import parse_time
from mainspring.server.build import open_node
from mainspring.server.engines import build_engine
from mainspring.server.fleet import SystemClock
from mainspring.server.metrics import workflow_measures
from mainspring.server.node import Shutdown
from mainspring.server.settings import MIB, LimitSettings, ServerSettings, WorkflowSettings, parse_store
from mainspring.worker import link
from mainspring.worker.settings import WorkerSettings
from mainspring.worker.workflows import decider
from mainspring.workflows import watch
from mainspring.workflows.observers import NewlyParked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from mainspring.server.build import Built
    from mainspring.worker.runtime import Worker

pytestmark = pytest.mark.system

TIMEOUT = 60.0


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a condition that no event reports."""
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Fleet:
    """A node, and workers for Apps."""

    def __init__(self, built: Built, socket: Path) -> None:
        self.built = built
        self.address = f"unix:{socket}"

    @contextlib.asynccontextmanager
    async def worker(self, app: App, **settings: Any) -> AsyncIterator[Worker]:
        """Run a worker, and stop it politely."""
        app.connect_to(self.address)
        worker = app.worker(WorkerSettings(**settings))
        working = asyncio.create_task(worker.run())
        try:
            await eventually(lambda: worker.links[0].session.agreed)
            workflows = self.built.node.workflows
            assert workflows is not None
            # Before the node has recorded the definitions, a submission is an ordinary job: its run begins later.
            await eventually(
                lambda: all(workflows.definitions.is_workflow(name.encode()) for name, _ in app.registry.workflows)
            )
            yield worker
        finally:
            worker.stop()
            await working

    async def call(self, app: App, method: str, **params: Any) -> Any:
        app.connect_to(self.address)
        return await app.connections.aio().call(method, params)

    async def history(self, app: App, key: str) -> list[str]:
        events = (await self.call(app, "workflows.history", key=key, limit=1000))["items"]
        return [event["eventType"] for event in events]

    async def until(self, app: App, key: str, **wanted: Any) -> dict[str, Any]:
        """Wait until a run has some values, and return it."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                shown: dict[str, Any] = await self.call(app, "workflows.show", key=key)
                if all(
                    bool(shown[name]) == value if value is True else shown[name] == value
                    for name, value in wanted.items()
                ):
                    return shown
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def node(directory: Path, max_packet: int = 64 * MIB, **workflows: Any) -> AsyncIterator[Fleet]:
    """Run a node, with settings of workflows."""
    clock = SystemClock()
    settings = ServerSettings(
        name=node_id("test"),
        store=parse_store(f"sqlite:///{directory / 'store.db'}"),
        limits=LimitSettings(max_packet=max_packet),
        workflows=WorkflowSettings(**workflows),
    )
    engine = build_engine(settings.store, workflows=settings.workflows)
    built = await open_node(settings, engine, clock, Shutdown(clock, settings.process.grace))
    try:
        socket = directory / "s"
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: GearmanProtocol(built.node.face), str(socket)
        )
        try:
            yield Fleet(built, socket)
        finally:
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
        async with node(tmp_path) as fleet, fleet.worker(app):
            run = await order.options(id="order-17").asubmit(17)
            await order.get("order-17").asignal(approved, {"by": "eva"})
            result = await run.aresult(TIMEOUT)
            assert result == {"payment": "order 17 paid 51", "by": "eva"}
            assert did == ["price", "charge"]

    asyncio.run(main())


def test_a_run_whose_code_has_changed_is_parked_until_the_code_fits(tmp_path: Path) -> None:
    async def begin() -> None:
        app, order, _, did = order_app()
        async with node(tmp_path) as fleet, fleet.worker(app):
            await order.options(id="order-17").asubmit(17)
            await waits_for(order, "approved")
            assert did == ["price", "charge"]

    async def change() -> None:
        app, order, approved, did = order_app(discount=1)
        async with node(tmp_path) as fleet, fleet.worker(app):
            await order.get("order-17").asignal(approved, {"by": "eva"})
            details = await waits_for(order, "parked")
            assert details["parked"]["kind"] == "mismatch"
            assert details["parked"]["recorded"][details["parked"]["at"]] == "activity #1 charge [17,51]"
            assert details["parked"]["code"][details["parked"]["at"]] == "activity #1 charge [17,50]"
            assert did == []

    async def undo() -> None:
        app, order, _, did = order_app()
        async with node(tmp_path) as fleet, fleet.worker(app):
            await app.connections.aio().call("workflows.unpark", {"key": "order-17"})
            assert (await order.get("order-17").aresult())["payment"] == "order 17 paid 51"
            assert did == []

    for part in (begin, change, undo):
        asyncio.run(asyncio.wait_for(part(), TIMEOUT))


def printing_app() -> tuple[App, Any, Any]:
    """Return an App with a workflow that holds a printer for an activity, a child, and after a signal another activity."""
    app = App()
    printers = app.resource("printer", items={"p1": {"colour"}, "p2": set()})
    go = app.signal("go", str)

    @app.task
    def use(held: HeldSlots, page: str) -> str:
        return f"{page} on {held.item} as {held.number}"

    @app.workflow
    async def chapter(held: HeldSlots) -> str:
        return await use.submit(held, "chapter")

    @app.workflow
    async def brochure() -> list[str]:
        async with printers["colour"].hold(timeout="1h") as held:
            pages = [await use.submit(held, "cover"), await chapter.submit(held)]
            await go.receive()
            return [*pages, await use.submit(held, "back")]

    return app, brochure, go


def test_a_run_keeps_its_slots_over_the_end_of_its_node(tmp_path: Path) -> None:
    async def shown(fleet: Fleet, app: App) -> list[tuple[str, str, list[str]]]:
        runs = [await fleet.call(app, "workflows.show", key=key) for key in ("first", "second")]
        (printer,) = [(await fleet.call(app, "resources.show", name="printer"))]
        assert [one["kind"] for one in (*printer["holds"], *printer["waits"])] == ["run", "run"]
        assert (printer["holds"][0]["holder"], printer["waits"][0]["holder"]) == (runs[0]["run"], runs[1]["run"])
        return [(one["state"], one["item"], one["lacks"]) for run in runs for one in run["holds"]]

    expected = [("held", "p1", []), ("waits", "colour", ["printer"])]

    async def begin() -> None:
        app, brochure, _ = printing_app()
        async with node(tmp_path) as fleet, fleet.worker(app):
            await brochure.options(id="first").asubmit()
            await fleet.until(app, "first", receives=["go"])
            await brochure.options(id="second").asubmit()
            await fleet.until(app, "second", holds=True)
            assert await shown(fleet, app) == expected

    async def go_on() -> None:
        app, brochure, go = printing_app()
        async with node(tmp_path) as fleet:
            assert await shown(fleet, app) == expected
            async with fleet.worker(app):
                for key, number in (("first", 1), ("second", 2)):
                    await brochure.get(key).asignal(go, "on")
                    pages = [f"{page} on p1 as {number}" for page in ("cover", "chapter", "back")]
                    assert await brochure.get(key).aresult(TIMEOUT) == pages

    for part in (begin, go_on):
        asyncio.run(asyncio.wait_for(part(), TIMEOUT))


def test_a_run_with_a_long_history_is_logged_once(tmp_path: Path) -> None:
    async def main() -> None:
        app, order, approved, _ = order_app()
        async with node(tmp_path, events=30) as fleet, fleet.worker(app):
            run = await order.options(id="order-17").asubmit(17)
            await run.asignal(approved, {"by": "eva"})
            await run.aresult(TIMEOUT)
            (line,) = (line for line in lines if line["event"] == "the history of a run is long")
            assert line["run"].startswith(f"{run.handle}@")

    with capture_logs() as lines:
        asyncio.run(main())


def test_a_run_is_signalled_and_shown_before_the_first_worker(tmp_path: Path) -> None:
    app, order, approved, _ = order_app()

    async def main() -> None:
        async with node(tmp_path) as fleet:
            app.connect_to(fleet.address)
            job = await order.options(id="order-17").asubmit(17)
            run = order.get("order-17")
            await run.asignal(approved, {"by": "eva"})
            details = await run.adetails()
            assert (details["status"], details["version"], details["begins_at"]) == ("pending", "", None)
            assert details["waits_for"] == "a first worker with the workflow order"
            assert (await run.ainfo())["state"] == await run.astate() == "pending"
            assert await fleet.history(app, "order-17") == []
            delayed = await order.options(id="order-18", delay=60).asubmit(18)
            later = await order.get("order-18").adetails()
            assert (later["status"], later["handle"]) == ("scheduled", delayed.handle)
            assert later["begins_at"] == (await delayed.ainfo())["run_at"]
            async with fleet.worker(app):
                result = await job.aresult(TIMEOUT)
                assert result["by"] == "eva"
                await order.get("order-18").acancel()
                assert await delayed.astate() == "cancelled"

    asyncio.run(main())


def test_the_settings_of_a_node_limit_runs(tmp_path: Path) -> None:
    app = App()

    @app.workflow
    async def fan_out(number: int, size: int) -> int:
        jobs = [app.function("nobody").submit(bytes(size)) for _ in range(number)]
        await workflow.sleep(0.001)
        return len(jobs)

    @app.workflow
    async def chatty() -> None:
        while True:
            await workflow.sleep(0.001)

    @app.workflow
    async def idle() -> None:
        await workflow.sleep("1d")

    async def main() -> None:
        async with node(tmp_path, open=3, events=60, max_packet=MIB) as fleet, fleet.worker(app):
            assert await (await fan_out.asubmit(3, MIB // 4)).aresult(TIMEOUT) == 3
            shown = await fleet.until(app, (await fan_out.asubmit(4, 1)).handle, parked=True)
            assert "the run has 3 open activities" in shown["parked"]["message"]
            shown = await fleet.until(app, (await fan_out.asubmit(1, MIB)).handle, parked=True)
            assert "has 1,048,576 bytes, and the store takes at most 1,044,480" in shown["parked"]["message"]
            shown = await fleet.until(app, (await chatty.asubmit()).handle, status="terminated")
            assert shown["events"] <= 60
        async with node(tmp_path, timeout=0.1) as fleet, fleet.worker(app):
            with pytest.raises(UsageError, match="a run at this node lasts from 1us to 100ms: timeout is 1s"):
                await fleet.call(app, "workflows.start", function="idle", timeout=1.0)
            with pytest.raises(JobTimedOut):
                await (await idle.asubmit()).aresult(TIMEOUT)

    asyncio.run(main())


def test_reports_fit_into_the_packets_of_the_node(tmp_path: Path) -> None:
    app = App()

    @app.task
    def large() -> str:
        return "x" * (MIB * 2 // 5)

    @app.workflow
    async def collect() -> int:
        return sum(len(text) for text in await asyncio.gather(*(large.submit() for _ in range(3))))

    @app.workflow
    async def fan_out(number: int) -> int:
        jobs = [app.function("nobody").submit(bytes(MIB * 2 // 5)) for _ in range(number)]
        await workflow.sleep(0.001)
        return len(jobs)

    async def main() -> None:
        async with node(tmp_path, open=3, max_packet=MIB) as fleet, fleet.worker(app):
            runs = [await fan_out.asubmit(1) for _ in range(4)]
            assert [await run.aresult(TIMEOUT) for run in runs] == [1] * 4
            assert await (await collect.asubmit()).aresult(TIMEOUT) == 3 * (MIB * 2 // 5)
            shown = await fleet.until(app, (await fan_out.asubmit(3)).handle, parked=True)
            assert "decision have 1.2 MiB, and the node takes at most 1023.9 KiB" in shown["parked"]["message"]

    asyncio.run(main())


def test_runs_of_a_paused_workflow_begin_when_it_is_resumed(tmp_path: Path) -> None:
    app, order, approved, _ = order_app()

    async def main() -> None:
        async with node(tmp_path) as fleet, fleet.worker(app):
            first = await order.options(id="order-1").asubmit(1)
            await fleet.until(app, "order-1", receives=["approved"])
            await fleet.call(app, "functions.pause", function="order")
            await order.options(id="order-2").asubmit(2)
            started = await fleet.call(app, "workflows.start", function="order", args=[3], id="order-3", timeout=600.0)
            with pytest.raises(
                NotFoundError, match="no worker has registered version 2 of the workflow order; registered: 1"
            ):
                await fleet.call(app, "workflows.start", function="order", args=[4], version="2")
            await fleet.call(app, "workflows.start", function="order", args=[4], version="1", id="order-4")
            await order.get("order-2").asignal(approved, {"by": "eva"})
            await order.get("order-1").asignal(approved, {"by": "ann"})
            assert (await first.aresult(TIMEOUT))["by"] == "ann"
            listed = (await fleet.call(app, "workflows.list"))["items"]
            assert [(one["id"], one["status"]) for one in listed] == [
                ("order-4", "pending"),
                ("order-3", "pending"),
                ("order-2", "pending"),
                ("order-1", "completed"),
            ]
            for key in ("order-2", started["handle"]):
                shown = await fleet.call(app, "workflows.show", key=key)
                assert (shown["status"], shown["waits_for"]) == ("pending", "mainspring functions resume order")
        async with node(tmp_path) as fleet, fleet.worker(app):
            assert (await order.get("order-2").adetails())["status"] == "pending", "the pause outlives the node"
            await fleet.call(app, "functions.resume", function="order")
            assert (await order.get("order-2").aresult(TIMEOUT))["by"] == "eva"
            shown = await fleet.until(app, "order-3", receives=["approved"])
            times = [parse_time(shown[name]) for name in ("started_at", "times_out_at")]
            assert times[1] - times[0] == 600.0
            await fleet.until(app, "order-4", version="1")

    asyncio.run(main())


def test_runs_of_several_versions_stay_with_theirs(tmp_path: Path) -> None:
    app, order, approved, _ = order_app()

    async def second(number: int) -> dict[str, str]:
        return {"by": (await approved.receive())["by"] + " for 2"}

    order_2 = order.version("2")(second)

    async def main() -> None:
        async with node(tmp_path) as fleet, fleet.worker(app):
            newest = await order.options(id="newest").asubmit(1)
            first = await order_2.options(id="first", version="1").asubmit(1)
            later = await order.options(id="later", version="1", delay=0.05).asubmit(1)
            for delay in (None, 60):
                with pytest.raises(RefusedError, match="version 3 of the workflow order; registered: 1, 2"):
                    await order.options(version="3", delay=delay).asubmit(1)
            for run in (newest, first, later):
                await fleet.until(app, run.handle, receives=["approved"])
                await run.asignal(approved, {"by": "eva"})
            assert (await newest.aresult(TIMEOUT))["by"] == "eva for 2"
            assert (await first.aresult(TIMEOUT))["by"] == "eva"
            assert (await later.aresult(TIMEOUT))["by"] == "eva"
            assert [(await run.adetails())["version"] for run in (newest, first, later)] == ["2", "1", "1"]

    asyncio.run(main())


def test_versions_are_shown_and_removed_once_nothing_needs_them(tmp_path: Path) -> None:
    old, old_order, _, _ = order_app()
    app = App()

    @app.workflow(name="order", version="2")
    async def order(number: int) -> None:
        raise NotImplementedError

    async def rows(fleet: Fleet) -> list[tuple[Any, ...]]:
        listed = (await fleet.call(app, "workflows.versions", type="order"))["items"]
        names = ("version", "open", "workers", "gets_new_runs", "needed")
        return [tuple(one[name] for name in names) for one in listed]

    async def main() -> None:
        async with node(tmp_path) as fleet:
            with pytest.raises(NotFoundError, match="no worker has registered a workflow named order"):
                await rows(fleet)
            async with fleet.worker(old):
                run = await old_order.options(id="order-1").asubmit(1)
                await fleet.until(old, "order-1", receives=["approved"])
                assert await rows(fleet) == [("1", 1, 1, True, True)]
                async with fleet.worker(app):
                    await eventually(lambda: versions_of(fleet) == {"1", "2"})
                    assert await rows(fleet) == [("2", 0, 1, True, True), ("1", 1, 1, False, True)]
                    shown = (await fleet.call(app, "node.status"))["workflows"]
                    assert [(one["version"], one["workers"], one["parked"]) for one in shown] == [
                        ("1", 1, 0),
                        ("2", 1, 0),
                    ]
                with pytest.raises(ConflictError, match=r"version 1 of the workflow order has connected workers \(1\)"):
                    await fleet.call(app, "workflows.remove", type="order", version="1")
            with pytest.raises(ConflictError, match=r"has open runs: .*workflows list --open --type order"):
                await fleet.call(app, "workflows.remove", type="order", version="1")
            await run.aterminate()
            assert await rows(fleet) == [("2", 0, 0, True, True), ("1", 0, 0, False, False)]
            with pytest.raises(NotFoundError, match="the workflow order has no version 3; it has: 2, 1"):
                await fleet.call(app, "workflows.remove", type="order", version="3")
            with pytest.raises(ConflictError, match="version 2 of the workflow order gets the new runs"):
                await fleet.call(app, "workflows.remove", type="order", version="2")
            removed = await fleet.call(app, "workflows.remove", type="order", version="1")
            assert removed == {"type": "order", "version": "1", "state": "removed"}
            assert await rows(fleet) == [("2", 0, 0, True, True)]
            assert versions_of(fleet) == {"2"}
            with pytest.raises(RefusedError, match="no worker has registered version 1"):
                await order.options(version="1").asubmit(1)

    asyncio.run(main())


def versions_of(fleet: Fleet) -> set[str]:
    assert fleet.built.node.workflows is not None
    return {one.version for one in fleet.built.node.workflows.definitions.all()}


async def waits_for(order: Any, text: str) -> Any:
    """Wait until the run waits for something; return its details."""
    while True:
        details = await order.get("order-17").adetails()
        if text in (details["waits_for"] or ""):
            return details
        await asyncio.sleep(0.01)


def test_a_signal_and_a_timeout_reach_code_whose_step_runs(tmp_path: Path) -> None:
    app = App()
    ping = app.signal("ping", int)
    begun = asyncio.Event()

    @app.task
    async def slow() -> str:
        begun.set()
        await asyncio.sleep(60)
        return "slow"

    @app.workflow
    async def order() -> list[Any]:
        step = asyncio.ensure_future(slow.step())
        first = await ping.receive()
        try:
            async with asyncio.timeout(0.05):
                await step
        except TimeoutError:
            return [first, "too slow"]
        return [first, "done"]

    async def main() -> None:
        async with node(tmp_path) as fleet, fleet.worker(app):
            run = await order.asubmit()
            await begun.wait()
            await order.get(run.handle).asignal(ping, 3)
            assert await run.aresult(TIMEOUT) == [3, "too slow"]

    asyncio.run(main())


def test_an_evicted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    app = App()
    did: list[int] = []

    @app.task
    async def step(number: int) -> int:
        did.append(number)
        return number + 1

    @app.task
    async def activity(number: int) -> int:
        return number + 1

    @app.workflow
    async def order(number: int) -> int:
        for _ in range(3):
            number = await step.step(number)
            number = await activity.submit(number)
            await workflow.sleep(0.001)
        return number

    async def main() -> None:
        async with node(tmp_path) as fleet, fleet.worker(app, workflow_cache=0):
            assert await (await order.asubmit(0)).aresult(TIMEOUT) == 6
            assert did == [0, 2, 4]

    asyncio.run(main())


def test_a_worker_reads_a_long_history_in_pages(tmp_path: Path) -> None:
    app = App()
    go = app.signal("go", int)

    @app.workflow
    async def order() -> int:
        return sum([await go.receive() for _ in range(5000)])

    async def main() -> None:
        async with node(tmp_path) as fleet:
            async with fleet.worker(app):
                run = await order.asubmit()
                key = order.get(run.handle)
                await fleet.until(app, run.handle, receives=["go"])
                await asyncio.gather(*(key.asignal(go, 1) for _ in range(4999)))
            async with fleet.worker(app):
                await key.asignal(go, 2)
                assert await run.aresult(TIMEOUT) == 5001

    asyncio.run(main())


def test_a_worker_that_ends_records_its_step_and_hands_the_decision_back(tmp_path: Path) -> None:
    app = App()
    did: list[str] = []
    begun, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def first() -> str:
        begun.set()
        await go.wait()
        did.append("first")
        return "1"

    @app.task
    async def second() -> str:
        did.append("second")
        return "2"

    @app.workflow
    async def order() -> str:
        return await first.step() + await second.step()

    async def main() -> None:
        async with node(tmp_path) as fleet:
            async with fleet.worker(app) as worker:
                run = await order.asubmit()
                await begun.wait()
                worker.stop()
                go.set()
            assert did == ["first"]
            assert (await fleet.history(app, run.handle)).count("MarkerRecorded") == 1
            async with fleet.worker(app):
                assert await run.aresult(TIMEOUT) == "12"
            assert did == ["first", "second"]

    asyncio.run(main())


def test_a_mismatch_parks_a_run_until_a_worker_with_other_code_connects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK_INTERVAL", 0.05)

    def build(version: int) -> tuple[App, Any]:
        app = App()

        @app.task
        async def charge() -> str:
            return "paid"

        @app.task
        async def refund() -> str:
            return "refunded"

        go = app.signal("go", int)

        @app.workflow
        async def order() -> str:
            first = await (charge if version == 1 else refund).submit()
            await go.receive()
            return first

        monkeypatch.setattr(decider, "code_digest", lambda _: f"build {version}")
        return app, order

    async def main() -> None:
        async with node(tmp_path) as fleet:
            app, order = build(1)
            async with fleet.worker(app):
                run = await order.asubmit()
                await fleet.until(app, run.handle, receives=["go"])
            other, _ = build(2)
            async with fleet.worker(other):
                await fleet.call(other, "workflows.signal", key=run.handle, name="go", value=1)
                shown = await fleet.until(other, run.handle, parked=True)
                assert shown["parked"]["kind"] == "mismatch"
                assert fleet.built.node.workflows is not None
            app, order = build(1)
            async with fleet.worker(app):
                assert await order.get(run.handle).aresult(TIMEOUT) == "paid"

    asyncio.run(main())


def test_a_build_that_has_failed_does_not_get_the_run_again_after_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK_INTERVAL", 0.05)
    parked: list[int] = []
    monkeypatch.setattr(NewlyParked, "check", lambda _, run: parked.append(run.run) if run.parked else None)

    def build(version: int) -> tuple[App, Any]:
        app = App()
        go = app.signal("go", int)

        @app.task
        async def charge(version: int) -> int:
            return version

        @app.workflow
        async def order() -> int:
            await charge.submit(version)
            return sum([await go.receive() for _ in range(10)])

        monkeypatch.setattr(decider, "code_digest", lambda _: f"build {version}")
        return app, order

    async def received(fleet: Fleet, app: App, key: str, signals: int) -> None:
        async with asyncio.timeout(TIMEOUT):
            while True:
                events = await fleet.history(app, key)
                if events.count("WorkflowExecutionSignaled") == signals and events[-1] == "DecisionTaskCompleted":
                    return
                await asyncio.sleep(0.01)

    async def main() -> None:
        async with node(tmp_path) as fleet:
            first, order = build(1)
            async with fleet.worker(first):
                run = await order.asubmit()
                await fleet.until(first, run.handle, receives=["go"])
            second, _ = build(2)
            async with fleet.worker(second, workflow_cache=0):
                await fleet.call(second, "workflows.signal", key=run.handle, name="go", value=1)
                await fleet.until(second, run.handle, parked=True)
                first, order = build(1)
                async with fleet.worker(first, workflow_cache=0):
                    for number in range(2, 11):
                        await received(fleet, first, run.handle, number - 1)
                        await fleet.call(first, "workflows.signal", key=run.handle, name="go", value=number)
                    assert await order.get(run.handle).aresult(TIMEOUT) == 55
            assert len(parked) == 1

    asyncio.run(main())


def test_two_workers_share_the_activities_of_a_run(tmp_path: Path) -> None:
    def build() -> tuple[App, Any]:
        app = App()

        @app.task
        async def work(number: int) -> int:
            await asyncio.sleep(0.001)
            return number

        @app.workflow
        async def order() -> int:
            total = 0
            for _ in range(3):
                total += sum(await asyncio.gather(*(work.submit(i) for i in range(50))))
            return total

        return app, order

    async def main() -> None:
        async with node(tmp_path) as fleet:
            app, order = build()
            async with fleet.worker(app, concurrency=4), fleet.worker(build()[0], concurrency=4):
                assert await (await order.asubmit()).aresult(TIMEOUT) == 3 * 49 * 25

    asyncio.run(main())


@pytest.mark.parametrize("received", [True, False])
def test_an_activity_is_executed_as_often_as_a_job_whose_connection_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, received: bool
) -> None:
    """The connection ends when the result is on its way, in SETTLE or in DECIDE, and before or after the node has it."""
    monkeypatch.setattr(link, "delays", lambda: repeat(0.01))
    app = App()
    did: list[str] = []
    cuts: list[str] = []

    @app.task
    async def charge(of: str) -> str:
        did.append(of)
        return f"paid by {of}"

    @app.workflow
    async def order() -> str:
        paid = await charge.submit("run")
        await workflow.sleep(0.01)
        return paid

    write = link._Wire.write

    def cut(wire: Any, data: bytes) -> None:
        for of in ("run", "job"):
            if b"paid by %b" % of.encode() in data and of not in cuts:
                cuts.append(of)
                if received:
                    write(wire, data)
                wire.abort()
                return
        write(wire, data)

    monkeypatch.setattr(link._Wire, "write", cut)

    async def main() -> None:
        async with node(tmp_path) as fleet, fleet.worker(app):
            assert await (await charge.asubmit("job")).aresult(TIMEOUT) == "paid by job"
            assert await (await order.asubmit()).aresult(TIMEOUT) == "paid by run"
            assert cuts == ["job", "run"]
            assert did == (["job", "run"] if received else ["job", "job", "run", "run"])

    asyncio.run(main())


def test_a_cancelled_run_cleans_up(tmp_path: Path) -> None:
    app = App()
    did: list[str] = []

    @app.task
    async def undo() -> None:
        did.append("undo")

    @app.workflow
    async def order() -> None:
        try:
            await workflow.sleep(timedelta(days=1))
        finally:
            await undo.step()

    async def main() -> None:
        async with node(tmp_path) as fleet, fleet.worker(app):
            run = await order.asubmit()
            await fleet.until(app, run.handle, timers=True)
            await order.get(run.handle).acancel("no more")
            with pytest.raises(JobCancelled):
                await run.aresult(TIMEOUT)
            assert did == ["undo"]

    asyncio.run(main())


def test_closed_runs_are_deleted_after_their_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "FORGET_DELAY", 0.0)
    monkeypatch.setattr(watch, "FORGET_INTERVAL", 0.02)
    app = App()

    did: list[str] = []

    @app.workflow
    async def order() -> None:
        did.append("order")

    async def main() -> None:
        async with node(tmp_path, retention=0.0) as fleet, fleet.worker(app):
            run = await order.asubmit()
            async with asyncio.timeout(TIMEOUT):
                while (await fleet.call(app, "workflows.list"))["items"]:  # noqa: ASYNC110 - the node reports no deletion
                    await asyncio.sleep(0.01)
            assert did == ["order"]
            with pytest.raises(NotFoundError):
                await fleet.call(app, "workflows.show", key=run.handle)

    asyncio.run(main())


def test_parked_and_stranded_runs_are_counted_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_INTERVAL", 0.02)
    monkeypatch.setattr(watch, "STRANDED_AFTER", 0.1)
    app = App()
    go = app.signal("go", None)

    @app.workflow
    async def broken() -> None:
        raise NameError("nobody knows it")

    @app.workflow
    async def order() -> None:
        await go.receive()

    def measured(fleet: Fleet) -> dict[str, dict[str, float]]:
        assert fleet.built.node.workflows is not None
        return {
            measure.name.rpartition("_")[2]: {labels["type"]: number for labels, number in measure.samples}
            for measure in workflow_measures(fleet.built.node.workflows)
        }

    async def main() -> None:
        async with node(tmp_path) as fleet:
            async with fleet.worker(app):
                first = await broken.asubmit()
                await fleet.until(app, first.handle, parked=True)
                second = await order.asubmit()
                await fleet.until(app, second.handle, receives=["go"])
            await order.get(second.handle).asignal(go)  # asks for a decision, which no worker can make
            expected = {
                "open": {"broken": 1.0, "order": 1.0},
                "parked": {"broken": 1.0},
                "stranded": {"order": 1.0},
            }
            await eventually(lambda: measured(fleet) == expected)
            stranded = await fleet.call(app, "workflows.list", stranded=True)
            assert [run["handle"] for run in stranded["items"]] == [second.handle]
            await eventually(lambda: any("no worker of their version" in line["event"] for line in lines))

    with capture_logs() as lines:
        asyncio.run(main())
    warnings = [line for line in lines if "no worker of their version" in line["event"]]
    assert [(line["type"], line["runs"], line["log_level"]) for line in warnings] == [("order", 1, "warning")]
    parked = [line for line in lines if line["event"] == "a run is parked"]
    assert [(line["type"], line["kind"], line["log_level"]) for line in parked] == [("broken", "defect", "warning")]
    assert "NameError: nobody knows it" in parked[0]["problem"]


def test_stranded_runs_are_listed_and_reported_each_minute_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK_INTERVAL", 0.02)
    monkeypatch.setattr(watch, "STRANDED_AFTER", 0.1)
    monkeypatch.setattr(watch, "WARNING_INTERVAL", 0.2)
    app = App()
    approved = app.signal("approved", str)

    @app.workflow
    async def order() -> str:
        return await approved.receive()

    def listed(address: str) -> list[dict[str, Any]]:
        client = Client([parse_address(address)])
        out = io.TextIOWrapper(io.BytesIO(), "utf-8")
        try:
            with monkeypatch.context() as patch, contextlib.redirect_stdout(out):
                patch.setattr(ServerOptions, "client", lambda _: client)
                assert cli.main(["workflows", "list", "--stranded", "--json"]) == 0
        finally:
            client.close()
        out.flush()
        rows: list[dict[str, Any]] = json.loads(out.buffer.getvalue())
        return rows

    async def main() -> None:
        async with node(tmp_path) as fleet, fleet.worker(app):
            run = await order.asubmit()
            await fleet.until(app, run.handle, receives=["approved"])
        with capture_logs() as lines:
            async with node(tmp_path) as fleet:
                await order.get(run.handle).asignal(approved, "done")  # asks for a decision, which no worker can make
                await eventually(lambda: sum("no worker of their version" in line["event"] for line in lines) >= 2)
                (row,) = await asyncio.to_thread(listed, fleet.address)
                assert (row["handle"], row["waits_for"]) == (run.handle, "a worker with order@1")
                async with fleet.worker(app):
                    assert await order.get(run.handle).aresult(TIMEOUT) == "done"
                assert await asyncio.to_thread(listed, fleet.address) == []

    asyncio.run(main())


def test_two_workers_share_a_large_fan_out_with_few_evictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that decided at the end of each of its activities would lose most of these decisions, and evict the run."""
    evicted: list[int] = []
    evict = decider.WorkflowDecider._evict

    def counted(decider: decider.WorkflowDecider, run: Any) -> None:
        evicted.append(run.id)
        evict(decider, run)

    monkeypatch.setattr(decider.WorkflowDecider, "_evict", counted)

    def build() -> tuple[App, Any]:
        app = App()

        @app.task
        async def work(number: int) -> int:
            await asyncio.sleep(0.001 * (number % 7))
            return number

        @app.workflow
        async def order() -> int:
            return sum(await asyncio.gather(*(work.submit(i) for i in range(1000))))

        return app, order

    async def main() -> None:
        async with node(tmp_path) as fleet:
            app, order = build()
            async with fleet.worker(app, concurrency=10), fleet.worker(build()[0], concurrency=10):
                assert await (await order.asubmit()).aresult(TIMEOUT) == 999 * 500
                assert len(evicted) < 10

    asyncio.run(main())


def test_a_schedule_that_replaces_runs_of_a_workflow_waits_for_their_clean_up(tmp_path: Path) -> None:
    """A cancel is a request: the next run begins once the one before has ended."""
    app = App()
    did: list[str] = []
    cleaning, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def begin() -> None:
        did.append("begin")

    @app.task
    async def clean() -> None:
        cleaning.set()
        await go.wait()
        did.append("end")

    @app.workflow
    async def order() -> None:
        await begin.step()
        try:
            await workflow.sleep(timedelta(minutes=5))
        finally:
            await clean.submit()

    async def main() -> None:
        async with node(tmp_path) as fleet, fleet.worker(app):
            schedule = {"name": "often", "function": "order", "every": 86_400, "overlap": "replace"}
            await fleet.call(app, "schedules.add", **schedule, payload=b64encode(b"[]").decode())
            first = await fleet.call(app, "schedules.trigger", name="often")
            await fleet.until(app, first["handle"], timers=True)
            await fleet.call(app, "schedules.trigger", name="often")
            await asyncio.wait_for(cleaning.wait(), TIMEOUT)
            (run,) = (await fleet.call(app, "workflows.list", type="order"))["items"]
            assert (run["handle"], run["status"]) == (first["handle"], "open")
            go.set()
            await eventually(lambda: did == ["begin", "end", "begin"])
            second, first = (await fleet.call(app, "workflows.list", type="order"))["items"]
            assert first["status"] == "cancelled"
            assert first["closed_at"] <= second["started_at"]

    asyncio.run(main())
