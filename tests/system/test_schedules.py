"""Schedules of real nodes that are killed, frozen and restarted: each fire time has one row and one job."""

from __future__ import annotations

import json
import sys
import time
from base64 import b64encode
from collections import Counter
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from tests import commands

from .extension import ExtensionPeer
from .fleet import Fleet, ForkServer, addresses
from .processes import Node, mainspring, node
from .servers import environment, eventually, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres.server import PostgresServer

INTERVAL = 0.5
APP = """
import os
from mainspring import App, current_job

app = App()
ran = os.open("ran", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

@app.task
def f(name: str) -> None:
    os.write(ran, f"{name} {current_job().fire_time.isoformat()} {current_job().handle}\\n".encode())
"""


@contextmanager
def task_worker(directory: Path, servers: str) -> Iterator[None]:
    """Run a worker with the task."""
    (directory / "app.py").write_text(APP)
    command = [sys.executable, "-m", "mainspring", "worker", "app.py", "--server", servers]
    with (directory / "worker.log").open("wb") as log:
        process = commands.start(command, cwd=directory, env=environment(), stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def schedule_spec(name: str, **more: Any) -> dict[str, Any]:
    payload = b64encode(f'["{name}"]'.encode()).decode()
    return {"name": name, "function": "f", "payload": payload} | more


def instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def assert_complete(runs: list[dict[str, Any]], until: float) -> list[dict[str, Any]]:
    """Assert that the fire times until a time have no gap and no repetition; return their runs, the oldest first."""
    ordered = [run for run in reversed(runs) if instant(run["fire_time"]) <= until]
    times = [instant(run["fire_time"]) for run in ordered]
    expected = [times[0] + INTERVAL * number for number in range(len(times))]
    assert times == pytest.approx(expected, abs=1e-4)
    assert times[-1] > until - 2 * INTERVAL
    handles = [run["handle"] for run in ordered if run["handle"]]
    assert len(set(handles)) == len(handles)
    return ordered


def test_a_fleet_fires_all_times_while_nodes_die_and_freeze(
    tmp_path: Path, postgres: PostgresServer, database: str
) -> None:
    names = [f"s{number}" for number in range(20)]
    with ForkServer() as fork_server, Fleet(fork_server, tmp_path, database) as fleet:
        n1, n2, n3 = fleet.start_many("n1", "n2", "n3")
        root = [schedule_spec(name, every=INTERVAL, misfire="all") for name in names]
        child = schedule_spec("child", parents=["s0", "s1"])
        assert n1.ask("schedules.declare", app="test", schedules=[*root, child])["governs"]
        with task_worker(tmp_path, addresses(fleet.nodes)):
            time.sleep(3)
            n2.kill()
            time.sleep(3)
            n2 = fleet.start("n2")
            n3.freeze()
            time.sleep(2 * fleet.lease)
            n3.thaw()
            time.sleep(2)
            until = time.time() - 3
            n3.stop()

            def ended() -> bool:
                return all(
                    run["outcome"] is not None or instant(run["fire_time"]) > until
                    for name in (*names, "child")
                    for run in n1.ask("schedules.history", name=name, limit=1000)["items"]
                )

            eventually(ended, "all runs have ended")
            for name in names:
                runs = assert_complete(n1.ask("schedules.history", name=name, limit=1000)["items"], until)
                assert {run["state"] for run in runs} == {"fired"}
                assert {run["outcome"] for run in runs} == {"succeeded"}
            children = assert_complete(n1.ask("schedules.history", name="child", limit=1000)["items"], until)
            assert {run["outcome"] for run in children} == {"succeeded"}
    ran = Counter(line.rsplit(" ", 1)[0] for line in (tmp_path / "ran").read_text().splitlines())
    jobs = {tuple(line.split()) for line in (tmp_path / "ran").read_text().splitlines()}
    assert len(jobs) == len(ran), "no fire time had two jobs, even if a job ran twice"


def test_a_restarted_server_makes_up_for_missed_fire_times(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        with server.extended() as tool:
            for misfire in ("once", "skip", "all"):
                tool.call("schedules.add", **schedule_spec(misfire, every=INTERVAL, misfire=misfire))
        with task_worker(tmp_path, f"127.0.0.1:{server.port}"):
            time.sleep(2)
            killed = time.time()
            server.kill()
    time.sleep(3)
    with serving(tmp_path) as server, task_worker(tmp_path, f"127.0.0.1:{server.port}"):
        silent = time.time() - killed
        time.sleep(3)
        until = time.time() - 1
        with server.extended() as tool:
            runs = {
                name: assert_complete(tool.call("schedules.history", name=name, limit=1000)["items"], until)
                for name in ("once", "skip", "all")
            }
    reasons = {name: [run["reason"] or run["state"] for run in ordered] for name, ordered in runs.items()}
    assert set(reasons["all"]) == {"fired"}
    assert 2 <= reasons["skip"].count("misfire") <= silent / INTERVAL + 1
    # All times that were missed by more than a second are made up for once, at the newest one.
    assert 1 <= reasons["once"].count("misfire") <= reasons["skip"].count("misfire")
    assert reasons["once"][-1] == reasons["skip"][-1] == "fired"
    assert {run["outcome"] for run in runs["all"]} <= {"succeeded", None}


CHAIN_APP = """
from datetime import timedelta
from mainspring import App

app = App()

@app.scheduled(every=timedelta(milliseconds=200), overlap="queue")
def root() -> None: ...

@app.scheduled(parent="root")
def child() -> None: ...
"""


def test_a_node_without_schedules_fires_them_only_by_hand(tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text(CHAIN_APP)
    options = ("--gearman", "127.0.0.1:0", "--store", "sqlite:///jobs.db", "--no-schedules")
    with node("run", "quiet.py", *options, cwd=tmp_path) as running:

        def query(*words: str) -> Any:
            done = mainspring(*words, "--json", "--server", running.address, cwd=tmp_path)
            assert done.returncode == 0, done
            return json.loads(done.stdout)

        eventually(lambda: len(query("schedules", "list")) == 2, "the code's schedules are in the store")
        time.sleep(2)
        assert query("schedules", "history", "root") == []
        assert query("status")["schedules"] is False
        mainspring("schedules", "trigger", "root", "--server", running.address, cwd=tmp_path)
        eventually(lambda: [run["outcome"] for run in query("schedules", "history", "child")], "the child follows")
        assert len(query("schedules", "history", "root")) == 1
        assert running.stop() == 0
        assert "this node fires no schedules" in running.log.read_text()


TWO_STORES = """
from mainspring import App

app = App(name="shop")

@app.scheduled(every="1h")
def kept() -> None: ...

@app.scheduled(every="{interval}"{name})
def changes() -> None: ...
"""


def test_each_of_two_stores_gets_the_schedules_of_the_code(tmp_path: Path) -> None:
    path = tmp_path / "shop.py"

    def start(stack: ExitStack, name: str, address: str = "127.0.0.1:0") -> Node:
        options = ("--gearman", address, "--store", f"sqlite:///{name}.db", "--http", "none")
        return stack.enter_context(node("serve", *options, cwd=tmp_path))

    def await_schedules(server: Node, *expected: tuple[str, str]) -> None:
        with closing(ExtensionPeer(server.port)) as peer:
            peer.extend()

            def stored() -> list[tuple[str, str]]:
                return [(one["name"], one["when"]) for one in peer.call("schedules.list")["items"]]

            eventually(lambda: stored() == list(expected), f"{server.address} has {expected}", 60)

    with ExitStack() as stack:
        first, second = start(stack, "first"), start(stack, "second")
        worker = ("worker", "shop.py", "--server", f"{first.address},{second.address}")
        second.stop()
        path.write_text(TWO_STORES.format(interval="1h", name=""))
        with node(*worker, cwd=tmp_path, faces=()):
            await_schedules(first, ("changes", "every 1h"), ("kept", "every 1h"))
            second = start(stack, "second", second.address)  # a server that comes up later gets them when it is reached
            await_schedules(second, ("changes", "every 1h"), ("kept", "every 1h"))
        path.write_text(TWO_STORES.format(interval="2h", name=', name="renamed"'))
        with node(*worker, cwd=tmp_path, faces=()) as running:
            for server in (first, second):
                await_schedules(server, ("kept", "every 1h"), ("renamed", "every 2h"))

            def log_names() -> set[str]:
                """Return the servers of the log's lines about the removed schedule."""
                lines = [json.loads(line) for line in running.log.read_text().splitlines()]
                return {one["server"] for one in lines if one["event"].startswith("schedule removed changes")}

            eventually(lambda: log_names() == {first.address, second.address}, "the log names both servers")
