from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring import App
from mainspring.cli.worker import WorkerOptions
from mainspring.cli.worker_order import WorkerOrder
from mainspring.cli.worker_process import _about_code, _check_memory, _chosen, _set_task_environment, settings_of
from mainspring.client.tls import TLS_VARIABLES, TlsFiles
from mainspring.errors import SettingsError, UsageError
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


def test_the_check_of_replays_reaches_the_worker() -> None:
    assert settings_of(WorkerOptions(check_replay=True).order("shop.tasks", [], 1.0)).check_replay
    assert not settings_of(WorkerOptions().order("shop.tasks", [], 1.0)).check_replay
