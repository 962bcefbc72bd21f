"""Workflows of an App, and their runs, as programs outside of them see them."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.client.extension_server import ExtensionServer

from mainspring import App, NotFoundError, PayloadError, UsageError, ZooKeeper
from mainspring.client.run import Run
from mainspring.wire.gearman_protocol import Type

if TYPE_CHECKING:
    from collections.abc import Iterator

Anything: Any = App  # a caller without a type checker


@pytest.fixture
def server() -> Iterator[ExtensionServer]:
    with ExtensionServer() as server:
        yield server


@pytest.fixture
def app(server: ExtensionServer) -> Iterator[App]:
    app = App(str(server.address))
    yield app
    app.close()


class Runs:
    """The calls about runs of a fake server, whose only run has the workflow id ``order-17``."""

    def __init__(self, server: ExtensionServer) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.handle = server.add("order").handle.decode()
        server.before[Type.CALL] = self.answer

    def answer(self, peer: Any, args: list[bytes]) -> bool:
        number, method, text = args
        if not method.startswith(b"workflows."):
            return False
        params = json.loads(text)
        self.calls.append((method.decode(), params))
        if params["key"] not in {"order-17", self.handle}:
            peer.send(Type.FAULT, number, b"not_found", b"there is no run")
        else:
            peer.send(Type.ANSWER, number, json.dumps({"handle": self.handle, "status": "open"}).encode())
        return True


@pytest.fixture
def runs(server: ExtensionServer) -> Runs:
    return Runs(server)


approved = App().signal("approved", dict[str, str])


def define(app: App) -> Any:
    @app.workflow(timeout=timedelta(days=30))
    async def order(number: int, items: list[str]) -> dict[str, int]:
        raise NotImplementedError

    return order


# ---- definitions ----


def test_a_workflow_is_registered_beside_the_tasks(app: App) -> None:
    @app.task
    def charge(number: int) -> str:
        return str(number)

    @app.workflow
    async def plain() -> None:
        """Do nothing."""

    @app.workflow(name="plain", version="2", park_on=[ZeroDivisionError], timeout="1h")
    async def newer() -> None: ...

    assert [function.name for function in app.registry] == ["charge"]
    assert app.registry.names() == ["charge", "plain"]
    first, second = app.registry.workflows.values()
    assert (first.code.name, first.code.version, first.timeout, first.code.call.__name__) == (
        "plain",
        "1",
        None,
        "plain",
    )
    assert (second.code.name, second.code.version, second.timeout) == ("plain", "2", 3600.0)
    assert second.code.park_on == (ZeroDivisionError,)
    assert TypeError in first.code.park_on
    assert (plain.__doc__, repr(newer)) == ("Do nothing.", "Workflow('plain', version='2')")
    chosen = app.registry.subset(["plain"])
    assert (len(chosen), list(chosen.workflows)) == (0, [("plain", "1"), ("plain", "2")])
    assert list(app.registry.subset(["charge"]).workflows) == []


def test_a_name_is_that_of_a_task_or_of_a_workflow(app: App) -> None:
    def one() -> None: ...

    async def flow() -> None: ...

    app.task(name="a")(one)
    app.workflow(name="b")(flow)
    with pytest.raises(
        UsageError, match=r"a task and a workflow are named 'a' \(.*one and .*flow\): give one of them another"
    ):
        app.workflow(name="a")(flow)
    with pytest.raises(UsageError, match="a task and a workflow are named 'b'"):
        app.task(name="b")(one)
    with pytest.raises(UsageError, match="two workflows are named 'b' in version '1'"):
        app.workflow(name="b")(flow)


async def flow() -> None: ...


def sync() -> None: ...


@pytest.mark.parametrize(
    ("options", "call", "message"),
    [
        ({}, sync, "sync is no coroutine function: a workflow is an `async def`, or make it a task"),
        ({}, 5, "a workflow must be a function; it is 5"),
        ({"timeout": 0}, flow, "a run may last more than 0 and at most 366 days: timeout is 0"),
        ({"timeout": "367d"}, flow, "at most 366 days: timeout is '367d'"),
        ({"timeout": "soon"}, flow, "timeout: "),
        ({"park_on": TypeError}, flow, r"park_on must be a tuple of exceptions, such as \(TypeError, AssertionError\)"),
        ({"park_on": (5,)}, flow, "park_on must be"),
        ({"park_on": (KeyboardInterrupt,)}, flow, "park_on must be"),
        ({"version": ""}, flow, "'' is not a version of a workflow"),
        ({"version": "1@2"}, flow, "'1@2' is not a version of a workflow: use printable text without @"),
        ({"version": 2}, flow, r"version must be text; it is 2 \(int\)"),
        ({"name": "a\x1fb"}, flow, r"without NUL and U\+001F"),
        ({"name": "a\nb"}, flow, "is not a name for a workflow: use printable text"),
        ({"name": "n" * 505}, flow, "is too long for a workflow: shorten them by 6 bytes"),
        ({"priority": "urgent"}, flow, "priority must be 'high', 'normal' or 'low'"),
        ({"id": 5}, flow, "id must be text, or a function"),
    ],
)
def test_wrong_definitions_are_refused(options: dict[str, Any], call: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Anything().workflow(**options)(call)


def test_an_app_on_zookeeper_has_no_workflows() -> None:
    app = App(store=ZooKeeper("zookeeper://zk1:2181"))
    with pytest.raises(
        UsageError, match="which has no workflows: define them on an App with a store on SQLite or PostgreSQL"
    ):
        app.workflow(flow)


def test_a_workflow_is_no_task(app: App) -> None:
    with pytest.raises(UsageError, match="order is a workflow, and not a function for a task: schedule it"):
        app.task(name="other")(define(app))


def test_a_workflow_is_not_called(app: App) -> None:
    order = define(app)
    with pytest.raises(
        UsageError, match=r"order is a workflow, which only workers run: start a run with order\.submit\(…\)"
    ):
        order(1, [])


@pytest.mark.parametrize(("name", "message"), [("", "must not be empty"), (5, "a signal's name must be text")])
def test_wrong_names_of_signals_are_refused(app: App, name: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        app.signal(name, dict)


# ---- starts ----


def test_starting_is_submitting(server: ExtensionServer, app: App) -> None:
    order = define(app)
    run = order.options(id="order-17", priority="high", timeout="7d").submit(17, ["cat"])
    second = asyncio.run(asubmitted(app, order.options(id="order-17"), 17, ["owl"]))
    assert isinstance(run, Run)
    assert (run.handle, run.joined, second.handle, second.joined) == (run.handle, False, run.handle, True)
    ((function, unique, options, payload), _) = server.seen_of(Type.SUBMIT)
    assert (function, unique, payload) == (b"order", b"order-17", b'[17,["cat"]]')
    assert json.loads(options) == {"priority": "high", "timeout": 604800.0, "version": ""}
    assert [isinstance(job, Run) for job in order.submit_many([(1, []), (2, [])])] == [True, True]
    with pytest.raises(TypeError):
        order.submit(17)


async def asubmitted(app: App, order: Any, *args: Any) -> Any:
    try:
        return await order.asubmit(*args)
    finally:
        await app.aclose()


def test_options_of_tasks_alone_are_refused(app: App) -> None:
    order = define(app)
    with pytest.raises(TypeError, match="heartbeat"):
        order.options(heartbeat=5)
    with pytest.raises(UsageError, match="at most 366 days"):
        order.options(timeout="1000d")
    with pytest.raises(UsageError, match="delay and run_at exclude each other"):
        order.options(delay=1, run_at=datetime(2030, 1, 1, tzinfo=UTC))


def test_options_of_children_are_for_children_alone(server: ExtensionServer, app: App) -> None:
    order = define(app)
    with pytest.raises(UsageError, match="child_policy is for a child"):
        order.options(child_policy="abandon").submit(1, [])
    with pytest.raises(UsageError, match="cancel is for a child"):
        order.options(cancel="wait").submit(1, [])
    with pytest.raises(UsageError, match="'terminate', 'cancel' or 'abandon'"):
        order.options(child_policy="never")
    assert not server.seen


def test_a_schedule_can_start_runs(app: App) -> None:
    order = define(app)
    assert app.scheduled("@daily", args=(1, []), name="nightly")(order) is order
    (schedule,) = app.schedules.all()
    assert (schedule.name, schedule.function, schedule.args) == ("nightly", b"order", b"[1,[]]")
    assert len(app.registry) == 0


# ---- runs ----


def end(server: ExtensionServer, runs: Runs, data: bytes) -> None:
    job = server.jobs[runs.handle.encode()]
    job.data = data

    def act() -> None:
        server.end(job, "succeeded")
        server.dispatch()

    server.do(act)


def test_a_run_is_found_by_its_workflow_id_when_it_is_used(server: ExtensionServer, runs: Runs, app: App) -> None:
    run = define(app).get("order-17")
    assert repr(run) == "Run('order-17')"
    assert not server.seen
    assert run.info()["state"] == run.state == "pending"
    assert runs.calls == [("workflows.show", {"key": "order-17"})], "it is asked once"
    end(server, runs, b'{"labels":2}')
    assert run.result(5) == {"labels": 2}
    assert run.handle == runs.handle
    assert run.details()["status"] == "open"


def test_the_asyncio_methods_of_a_run(server: ExtensionServer, runs: Runs, app: App) -> None:
    order = define(app)

    async def main() -> None:
        assert (await order.get("order-17").ainfo())["state"] == "pending"
        assert await order.get("order-17").astate() == "pending"
        assert (await order.get("order-17").adetails())["status"] == "open"
        await order.get("order-17").asignal(approved, {"by": "eva"})
        await order.get("order-17").aterminate("wrong")
        await asyncio.to_thread(end, server, runs, b'{"labels":2}')
        assert await order.get("order-17").aresult(5) == {"labels": 2}
        assert await order.get("order-17") == {"labels": 2}
        assert await order.get("order-17").outcome() == ({"labels": 2}, None)
        assert [event async for event in order.get("order-17").astream(5)] == []
        assert await order.get("order-17").acancel("wrong", request="r1") == "running"
        await app.aclose()

    cancels: list[Any] = []
    server.before[Type.CALL] = cancel_or(runs, cancels)
    asyncio.run(main())
    shown = [params["key"] for method, params in runs.calls if method == "workflows.show"]
    assert shown == ["order-17"] * 7
    assert cancels == [{"key": "order-17", "reason": "wrong", "request": "r1"}]


def cancel_or(runs: Runs, cancels: list[Any]) -> Any:
    def answer(peer: Any, args: list[bytes]) -> bool:
        if args[1] == b"workflows.cancel":
            cancels.append(json.loads(args[2]))
            peer.send(Type.ANSWER, args[0], b'{"status": "open"}')
            return True
        return runs.answer(peer, args)

    return answer


@pytest.mark.parametrize("suffix", ["", "@3000000000042"])
def test_a_run_with_a_handle_needs_no_request_to_be_found(server: ExtensionServer, app: App, suffix: str) -> None:
    run = define(app).get(f"H:node:1000000000001{suffix}")
    assert run.handle == "H:node:1000000000001"
    assert not server.seen


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "the key of a run is empty"),
        (5, "the key of a run must be a handle or a workflow id"),
        ("x" * 65, "65 bytes"),
    ],
)
def test_wrong_keys_are_refused(app: App, key: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        define(app).get(key)


def test_an_unknown_run_is_not_found(runs: Runs, app: App) -> None:
    run = define(app).get("order-18")
    for request in (run.info, run.result, lambda: run.signal("approved"), run.terminate, run.cancel):
        with pytest.raises(NotFoundError, match="there is no run"):
            request()


def test_signals_are_checked_and_encoded(runs: Runs, app: App) -> None:
    run = define(app).get("order-17")
    run.signal(approved, {"by": "eva"}, request="r1")
    run.signal("plain", [1, "two"])
    run.signal("empty")
    run.signal("raw", b"\0\1")
    with pytest.raises(PayloadError, match="signal approved"):
        run.signal(approved, "eva")
    with pytest.raises(UsageError, match="a signal must be"):
        run.signal(5, "eva")
    sent = [(params["name"], b64decode(params["payload"]), params.get("request")) for _, params in runs.calls]
    assert sent == [
        ("approved", b'{"by":"eva"}', "r1"),
        ("plain", b'[1,"two"]', None),
        ("empty", b"", None),
        ("raw", b"\0\1", None),
    ]
    run.terminate("wrong order")
    assert runs.calls[-1] == ("workflows.terminate", {"key": "order-17", "reason": "wrong order"})
