"""``mainspring run`` uses the App's store, unless a setting names another one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from tests import commands

from mainspring import App, NotFoundError, RefusedError
from mainspring.version import core

from .processes import command, environment, is_alive, mainspring, node
from .servers import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from .processes import Node

APP = """
from mainspring import App, ZooKeeper

app = App(store={store})

@app.task
def double(number: int) -> int:
    return 2 * number
"""
OPTIONS = ("--gearman", "127.0.0.1:0", "--grace", "1s")
IGNORED = "the App's store is not used"


def write(directory: Path, store: str) -> None:
    (directory / "app.py").write_text(APP.format(store=store))


def events(running: Node) -> list[dict[str, Any]]:
    lines = running.log.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def is_logged(running: Node, words: str) -> bool:
    return any(words in event["event"] for event in events(running))


def started_event(running: Node) -> dict[str, Any]:
    (event,) = [event for event in events(running) if event["event"] == "started"]
    return event


def stop_after_start(running: Node) -> None:
    """Stop the node once its worker is connected: then its log is complete."""
    eventually(lambda: is_logged(running, "connected"), "the worker connects")
    assert running.stop() == 0


def test_jobs_are_kept_in_the_apps_store(tmp_path: Path) -> None:
    write(tmp_path, "'sqlite:///mine.db'")
    with node("run", "app.py", *OPTIONS, cwd=tmp_path) as running:
        done = mainspring("submit", "double", "[4]", cwd=tmp_path, MAINSPRING_SERVER=running.address)
        assert (done.returncode, done.stdout) == (0, b"8"), done
        stop_after_start(running)
    assert started_event(running)["store"] == f"sqlite:///{tmp_path}/mine.db"
    assert not is_logged(running, IGNORED)
    assert not (tmp_path / "mainspring.db").exists()


def test_the_log_names_the_kind_of_core(tmp_path: Path) -> None:
    with node("serve", *OPTIONS[:2], "--store", "memory://", cwd=tmp_path) as running:
        assert running.stop() == 0
    assert started_event(running)["core"] == core()


def test_an_app_without_a_store_has_the_default_one(tmp_path: Path) -> None:
    write(tmp_path, "None")
    with node("run", "app.py", *OPTIONS, cwd=tmp_path) as running:
        stop_after_start(running)
    assert started_event(running)["store"] == f"sqlite:///{tmp_path}/mainspring.db"


@pytest.mark.parametrize("where", ["option", "variable", "file"])
def test_a_setting_overrides_the_app_and_the_log_reports_it(tmp_path: Path, where: str) -> None:
    write(tmp_path, "'postgresql://jobs:secret@localhost/jobs'")
    options: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    if where == "option":
        options = ("--store", "sqlite:///given.db")
    elif where == "variable":
        variables = {"MAINSPRING_STORE": "sqlite:///given.db"}
    else:
        (tmp_path / "mainspring.toml").write_text('store = "sqlite:///given.db"\n')
    with node(
        "run", "app.py", *OPTIONS, *options, cwd=tmp_path, faces=("gearman",), worker=True, **variables
    ) as running:
        eventually(lambda: is_logged(running, IGNORED), "the log reports it")
        stop_after_start(running)
    assert started_event(running)["store"] == f"sqlite:///{tmp_path}/given.db"
    (event,) = [event for event in events(running) if IGNORED in event["event"]]
    assert event["given"] == started_event(running)["store"]
    assert event["app"] == "postgresql://jobs:***@localhost/jobs"


def test_nothing_is_logged_if_both_name_the_same_store(tmp_path: Path) -> None:
    # A process of its own imports the App after the start. When that process has ended, a message would be in the log.
    write(tmp_path, "'sqlite:///mine.db'")
    code = (
        "\nimport os, sys\nif 'mainspring.cli.app_store' in sys.orig_argv: open('asked', 'w').write(str(os.getpid()))\n"
    )
    path = tmp_path / "app.py"
    path.write_text(path.read_text() + code)
    with node("run", "app.py", *OPTIONS, "--store", f"sqlite:///{tmp_path}/mine.db", cwd=tmp_path) as running:
        asked = tmp_path / "asked"
        eventually(lambda: asked.exists() and asked.read_text(), "the App is imported")
        eventually(lambda: not is_alive(int(asked.read_text())), "its process has ended")
        stop_after_start(running)
    assert not is_logged(running, IGNORED)


@pytest.mark.parametrize("more", [(), ("--daemon",)])
def test_a_file_that_cannot_be_imported_ends_run_before_it_is_a_node(tmp_path: Path, more: tuple[str, ...]) -> None:
    (tmp_path / "app.py").write_text("x = 1\nraise RuntimeError('oops')\n")
    done = mainspring("run", "app.py", *OPTIONS, *more, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b'app.py", line 2' in done.stderr
    assert done.stderr.splitlines()[-1].startswith(b"mainspring: importing ")
    left = {path.name for path in tmp_path.iterdir() if path.suffix != ".log"}
    assert left - {"__pycache__"} == {"app.py"}


def test_the_store_of_the_app_is_checked_with_the_other_options(tmp_path: Path) -> None:
    write(tmp_path, "'sqlite:///mine.db'")
    done = mainspring("run", "app.py", *OPTIONS, "--cluster", "zookeeper://localhost", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith(b"sqlite:///mine.db is not one: leave it out\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_while_the_app_is_imported_stops_run(tmp_path: Path, number: signal.Signals) -> None:
    fifo = tmp_path / "began"
    os.mkfifo(fifo)
    (tmp_path / "app.py").write_text("import threading\nopen('began', 'w').close()\nthreading.Event().wait()\n")
    with commands.start(
        command("run", "app.py", *OPTIONS), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE
    ) as running:
        fifo.read_bytes()
        running.send_signal(number)
        assert running.communicate(timeout=30)[1] == b""
        assert running.returncode == 0


BRIEF = """
@app.task(keep_result="1s", ignore_result=True)
def brief(number: int) -> int:
    return number
"""


def test_run_uses_an_apps_store_on_zookeeper(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    write(tmp_path, f"ZooKeeper('zookeeper://{zookeeper}{chroot}')")
    with (tmp_path / "app.py").open("a") as file:
        file.write(BRIEF)
    with node("run", "app.py", *OPTIONS, cwd=tmp_path) as running:
        eventually(lambda: is_logged(running, "connected"), "the worker connects")
        with contextlib.closing(App(running.address)) as app:
            brief, kept = app.function("brief").submit([4]), app.function("double").submit([4])
            assert kept.result(60) == b"8"
            eventually(lambda: is_lost(app, brief.handle), "the job is deleted")
            assert app.job(kept.handle).info()["state"] == "succeeded"
        stop_after_start(running)
    assert started_event(running)["store"] == f"zookeeper://{zookeeper}{chroot}"


def is_lost(app: App, handle: str) -> bool:
    try:
        app.job(handle).info()
    except NotFoundError:
        return True
    return False


def test_a_limit_on_zookeeper_ends_run_with_the_remedy(tmp_path: Path) -> None:
    write(tmp_path, "ZooKeeper('zookeeper://localhost')")
    path = tmp_path / "app.py"
    path.write_text(path.read_text().replace("@app.task", "@app.task(concurrency=1)"))
    done = mainspring("run", "app.py", *OPTIONS, cwd=tmp_path)
    assert done.returncode == 2
    assert b"leave out concurrency=, or use a store on SQLite or PostgreSQL\n" in done.stderr


WORKFLOW = """
@app.workflow
async def order(number: int) -> int:
    return await double.submit(number)
"""


def test_a_workflow_on_zookeeper_ends_run_with_the_remedy(tmp_path: Path) -> None:
    write(tmp_path, "ZooKeeper('zookeeper://localhost')")
    with (tmp_path / "app.py").open("a") as file:
        file.write(WORKFLOW)
    done = mainspring("run", "app.py", *OPTIONS, cwd=tmp_path)
    assert done.returncode == 2
    assert b"which has no workflows: define them on an App with a store on SQLite or PostgreSQL\n" in done.stderr


def test_a_store_without_workflows_refuses_them_before_run_is_a_node_and_at_registration(
    tmp_path: Path, zookeeper: str, chroot: str
) -> None:
    write(tmp_path, "None")
    with (tmp_path / "app.py").open("a") as file:
        file.write(WORKFLOW)
    store = ("--store", f"zookeeper://{zookeeper}{chroot}")
    done = mainspring("run", "app.py", *OPTIONS, *store, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("mainspring: the store zookeeper://")
    assert "keeps no workflows, and app.py defines order: use a store on SQLite or PostgreSQL" in line
    with node("run", "app.py", *OPTIONS, *store, "--not", "order", cwd=tmp_path) as running:
        refused = mainspring("worker", "app.py", "--server", running.address, cwd=tmp_path)
        assert refused.returncode == 2
        assert b"order is a workflow, and this node's store keeps no workflows" in refused.stderr
        client = App(running.address)

        @client.workflow
        async def order() -> None: ...

        with (
            contextlib.closing(client),
            pytest.raises(RefusedError, match="keeps no workflows"),
        ):
            order.submit()
        stop_after_start(running)
