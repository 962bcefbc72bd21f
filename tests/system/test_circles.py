"""Circles of listeners end: whatever a listener's code does, the number of deliveries that have led to an event goes along."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, Event, current_job, workflow
from mainspring.client.blocking import Client
from mainspring.client.environment import parse_servers
from mainspring.jobs.model import MOST_DEPTH

from .http_port import ask
from .servers import eventually, serving
from .test_listeners import working

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

STORES = ["memory://", "sqlite:///jobs.db", "postgresql"]
EXPECTED = list(range(1, MOST_DEPTH + 1))
LOG = "deliveries have led to it in a circle"


class Circles:
    """An App with listeners, each of which causes the events that it gets, in another way."""

    def __init__(self, *, has_tokens: bool) -> None:
        self.has_tokens = has_tokens
        self.app = App(name="circles")
        self.depths: dict[str, list[int]] = defaultdict(list)
        self.begins: dict[str, Callable[[], Any]] = {}
        """The begin of each circle, by the name of its listener."""
        self.http = self.token = self.gearman = ""

    def listener(self, name: str, begin: Callable[[], Any], *types: str, function: Sequence[str] = ()) -> None:
        """Add a listener that begins its circle again."""

        def tell(event: Event) -> None:
            self.depths[name].append(current_job().depth)
            begin()

        self.begins[name] = begin
        self.app.on(*types, function=function, name=name)(tell)

    def of_runs(self) -> None:
        """Add circles through what a run does, and through its end."""
        app = self.app

        @app.task(name="of_run")
        def of_run() -> None: ...

        @app.task(name="of_child")
        def of_child() -> None: ...

        @app.task(name="of_step")
        def of_step() -> None: ...

        @app.workflow(name="acts")
        async def acts() -> None:
            await of_run.submit()

        @app.workflow(name="child")
        async def child() -> None:
            await of_child.submit()

        @app.workflow(name="parent")
        async def parent() -> None:
            await child.submit()

        def submits() -> None:
            of_step.submit()

        @app.workflow(name="steps")
        async def steps() -> None:
            await workflow.step(submits)

        @app.workflow(name="ends")
        async def ends() -> None: ...

        self.listener("by_run", acts.submit, "job.succeeded", function="of_run")
        self.listener("by_child", parent.submit, "job.succeeded", function="of_child")
        self.listener("by_step", steps.submit, "job.succeeded", function="of_step")
        self.listener("by_end", ends.submit, "run.completed", function="ends")

    def of_signals(self) -> None:
        """Add circles through signals: to a run that lives on, from a run, and to a chain of runs."""
        app = self.app
        go = app.signal("go", int)

        @app.task(name="of_signal")
        def of_signal() -> None: ...

        @app.task(name="of_sender")
        def of_sender() -> None: ...

        @app.task(name="of_chain")
        def of_chain() -> None: ...

        @app.workflow(name="waits")
        async def waits() -> None:
            while True:
                await go.receive()
                await of_signal.submit()

        @app.workflow(name="hears")
        async def hears() -> None:
            while True:
                await go.receive()
                await of_sender.submit()

        def send() -> None:
            hears.get("hearing").signal(go, 1)

        @app.workflow(name="sends")
        async def sends() -> None:
            await workflow.step(send)

        @app.workflow(name="chain")
        async def chain(heard: bool) -> None:
            if heard:  # by the run before it
                await of_chain.submit()
            await go.receive()
            raise workflow.continue_as_new(True)

        def begin() -> None:
            waits.options(id="waiting").submit()
            hears.options(id="hearing").submit()
            chain.options(id="chained").submit(False)

        self.begin_runs = begin
        self.listener("by_signal", lambda: waits.get("waiting").signal(go, 1), "job.succeeded", function="of_signal")
        self.listener("by_sender", sends.submit, "job.succeeded", function="of_sender")
        self.listener("by_chain", lambda: chain.get("chained").signal(go, 1), "job.succeeded", function="of_chain")

    def of_schedules(self) -> None:
        """Add circles through a schedule that is triggered, its child, and acts."""
        app = self.app

        @app.task(name="of_parent")
        def of_parent() -> None: ...

        @app.task(name="of_schedule")
        def of_schedule() -> None: ...

        def begin() -> None:
            app.schedules.add("first", function="of_parent", every=86_400)
            app.schedules.add("second", function="of_schedule", parents=["first"])

        self.begin_schedules = begin
        self.listener("by_schedule", lambda: app.schedules.trigger("first"), "job.succeeded", function="of_schedule")

    def of_requests(self) -> None:
        """Add circles through other requests: with a key, over HTTP, and acts of operators."""
        app = self.app

        @app.task(name="of_key")
        def of_key() -> None: ...

        @app.task(name="of_http")
        def of_http() -> None: ...

        def keyed() -> None:
            of_key.options(request_key=f"key {len(self.depths['by_key'])}").submit()

        def post() -> None:
            depth = current_job().depth if self.depths["by_http"] else 0
            body = json.dumps({"function": "of_http", "args": []})
            header = {"content_type": "application/json", "mainspring_depth": str(depth)}
            header["authorization"] = f"Bearer {self.token}"
            status, _, answer = ask(self.http, "POST", "/api/v1/namespaces/default/jobs", body, **header)
            assert status == 201, answer

        def pause() -> None:
            app.functions.resume("of_acts")
            app.functions.pause("of_acts")

        self.listener("by_key", keyed, "job.succeeded", function="of_key")
        if self.has_tokens:
            self.listener("by_http", post, "job.succeeded", function="of_http")

        def operate() -> None:
            with contextlib.closing(Client(parse_servers(self.gearman))) as client:
                client.call("operations.start", {"action": "cancel", "filter": {"function": "of_operation"}})

        self.listener("by_act", pause, "function.paused", function="of_acts")
        self.listener("by_operation", operate, "operation.ended")


@pytest.fixture(params=STORES, ids=["memory", "SQLite", "PostgreSQL"])
def store(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return request.getfixturevalue("database") if name == "postgresql" else name


def test_circles_of_each_kind_end(tmp_path: Path, store: str) -> None:
    circles = Circles(has_tokens=not store.startswith("memory"))
    circles.of_runs()
    circles.of_signals()
    circles.of_schedules()
    circles.of_requests()
    with serving(tmp_path, "--http", "127.0.0.1:0", store=store) as server, working(circles.app, server.port):
        circles.http, circles.gearman = f"127.0.0.1:{server.http}", f"127.0.0.1:{server.port}"
        if circles.has_tokens:
            client = Client(parse_servers(circles.gearman))
            circles.token = client.call("tokens.create", {"name": "circles", "grants": [{"role": "developer"}]})[
                "token"
            ]
            client.close()
        circles.begin_runs()
        circles.begin_schedules()
        for begin in circles.begins.values():
            begin()
        listeners = {f"listener:default/{name}" for name in circles.begins}

        def over() -> bool:
            goes_on = any(len(depths) > 2 * MOST_DEPTH for depths in circles.depths.values())
            return goes_on or stopped(server.log_text()) == listeners

        with contextlib.suppress(AssertionError):  # the comparisons say which one is missing
            eventually(over, "all circles end", 60)
        assert circles.depths == dict.fromkeys(circles.begins, EXPECTED)
        assert stopped(server.log_text()) == listeners


def stopped(log: str) -> set[str]:
    """Return the subscriptions whose circles have ended, by the lines of a log."""
    return {json.loads(line)["subscription"] for line in log.splitlines() if LOG in line}
