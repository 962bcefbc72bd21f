from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.unit.client.extension_server import ExtensionServer, Peer

from mainspring import App
from mainspring.cli.worker import WorkerOptions
from mainspring.cli.worker_order import WorkerOrder
from mainspring.cli.worker_process import (
    _about_code,
    _check_memory,
    _chosen,
    _connectors,
    _declare,
    _set_task_environment,
    settings_of,
)
from mainspring.client.sockets import TLS_VARIABLES, TlsFiles
from mainspring.errors import SettingsError, UsageError
from mainspring.wire.gearman_protocol import Type
from mainspring.worker.runtime import Ending, Worker
from mainspring.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from mainspring.worker.registry import Registry

ORDER = WorkerOrder(app="app.py", servers=["a:1", "unix:/b"], concurrency=1, grace=1.0)
TLS_FILES = TlsFiles("/ca.pem", "/own.pem", "/own.key")


def environment() -> list[str | None]:
    return [os.environ.get(name) for name in ("MAINSPRING_SERVER", *TLS_VARIABLES)]


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAINSPRING_SERVER", *TLS_VARIABLES):
        monkeypatch.setenv(name, "another")


def test_tasks_submit_to_the_servers_of_their_worker() -> None:
    _set_task_environment(msgspec.structs.replace(ORDER, tls=TLS_FILES))
    assert environment() == ["a:1,unix:/b", *TLS_FILES]


def test_without_tls_the_files_in_the_environment_are_removed() -> None:
    _set_task_environment(ORDER)
    assert environment() == ["a:1,unix:/b", None, None, None]


def test_an_order_is_decoded_as_it_was_encoded() -> None:
    order = msgspec.structs.replace(ORDER, tls=TLS_FILES)
    assert msgspec.json.decode(order.command()[-1], type=WorkerOrder) == order


def test_a_memory_limit_below_the_apps_own_use_is_refused() -> None:
    _check_memory(None, 100 << 20)
    _check_memory(101 << 20, 100 << 20)
    with pytest.raises(SettingsError, match=r"--max-memory 64.0 MiB is less than the 100.0 MiB .*: give more"):
        _check_memory(64 << 20, 100 << 20)


def test_the_number_of_extra_places_is_part_of_the_order_and_checked() -> None:
    assert WorkerOptions(waiting_places=3).order("shop.tasks", [], 1.0).waiting_places == 3
    assert WorkerOptions(waiting_places=0).order("shop.tasks", [], 1.0).waiting_places == 0
    with pytest.raises(SettingsError, match="--waiting-places must be at least 0; it is -1"):
        WorkerOptions(waiting_places=-1).order("shop.tasks", [], 1.0)
    assert [WorkerOptions(frozen_after=time).order("shop.tasks", [], 1.0).frozen_after for time in (0, 1.0)] == [0, 1.0]
    with pytest.raises(SettingsError, match="--frozen-after 100ms is so short"):
        WorkerOptions(frozen_after=0.1).order("shop.tasks", [], 1.0)
    with pytest.raises(UsageError, match="waiting_places"):
        WorkerSettings(waiting_places=-1)


def test_workflows_are_left_out_and_the_declaration_says_so() -> None:
    app = App()

    @app.task
    def pay() -> None: ...

    @app.workflow
    async def order() -> None: ...

    def chosen(**options: Any) -> Registry:
        return _chosen(app.registry, WorkerOptions(**options).order("shop.tasks", [], 1.0))

    assert chosen().names() == ["pay", "order"]
    assert chosen(no_workflows=True).names() == ["pay"]
    assert chosen(functions=("*r*",), no_workflows=True).names() == []
    about = _about_code(app.schedules, app.registry, chosen(no_workflows=True))
    assert about == {"functions": ["pay", "order"], "workflows": ["order"], "left_out": ["order"], "is_named": False}


def test_each_server_gets_the_schedules_of_the_functions_that_it_serves() -> None:
    app = App(name="shop")

    @app.scheduled(every="1h")
    def plain() -> None: ...

    @app.scheduled(every="1h")
    @app.task(concurrency=2)
    def limited() -> None: ...

    def refuse(peer: Peer, args: list[bytes]) -> bool:
        if args[0] == b"limited":
            peer.send(Type.ERROR, b"UNSUPPORTED", b"limited has concurrency, and this store keeps no limits")
        return args[0] == b"limited"

    def answer(peer: Peer, args: list[bytes]) -> bool:
        if args[1] == b"schedules.declare":
            peer.send(Type.ANSWER, args[0], b'{"governs":true,"changes":[]}')
        return args[1] == b"schedules.declare"

    def declared(server: ExtensionServer) -> list[dict[str, Any]]:
        return [json.loads(args[2]) for args in server.seen_of(Type.CALL) if args[1] == b"schedules.declare"]

    with ExtensionServer() as everything, ExtensionServer() as without_limits:
        without_limits.before[Type.REGISTER] = refuse
        servers = (everything, without_limits)
        order = msgspec.structs.replace(ORDER, servers=[str(server.address) for server in servers])

        async def main() -> None:
            worker = Worker(app.registry, _connectors(order))
            declaring = asyncio.create_task(_declare(app, app.registry, order, worker))
            running = asyncio.create_task(worker.run())
            for server in servers:
                server.before[Type.CALL] = answer
                await asyncio.to_thread(server.wait_for, lambda: declared(server), 30)  # noqa: B023 - awaited here
            declaring.cancel()
            worker.stop()
            await asyncio.wait([declaring, running])
            assert await running is Ending.STOPPED

        asyncio.run(main())
        for server, left_out in ((everything, []), (without_limits, ["limited"])):
            (call,) = declared(server)
            assert (call["app"], call["left_out"]) == ("shop", left_out)
            assert [one["name"] for one in call["schedules"]] == ["plain", "limited"]


def test_the_check_of_replays_reaches_the_worker() -> None:
    assert settings_of(WorkerOptions(check_replay=True).order("shop.tasks", [], 1.0)).check_replay
    assert not settings_of(WorkerOptions().order("shop.tasks", [], 1.0)).check_replay
