"""Guards at run time. Each case was seen to fail with its guard removed."""

# ruff: noqa: PLW0108, PTH208 - a guard replaces the names in modules, so each is looked up when it is called
from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import workflow
from mainspring.errors import WorkflowUsageError
from mainspring.workflows import history as h

from .fake_node import FakeNode, FakeWorker, code_of

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = Path(__file__)

FORBIDDEN: dict[str, tuple[Callable[[], object], str]] = {
    "time.time": (lambda: time.time(), "workflow.now()"),
    "time.monotonic": (lambda: time.monotonic(), "workflow.now()"),
    "time.perf_counter_ns": (lambda: time.perf_counter_ns(), "workflow.now()"),
    "time.localtime": (lambda: time.localtime(), "workflow.now()"),
    "time.sleep": (lambda: time.sleep(0), "workflow.sleep("),
    "random.random": (lambda: random.random(), "workflow.rng()"),
    "random.choice": (lambda: random.choice([1]), "workflow.rng()"),
    "random.SystemRandom": (lambda: random.SystemRandom(), "workflow.rng()"),
    "uuid.uuid4": (lambda: uuid.uuid4(), "workflow.uuid()"),
    "os.urandom": (lambda: os.urandom(4), "workflow.rng()"),
    "secrets.token_hex": (lambda: secrets.token_hex(), "workflow.rng()"),
    "open": (lambda: FILE.open(), "workflow.step("),
    "read_text": (lambda: FILE.read_text(), "workflow.step("),
    "listdir": (lambda: os.listdir("/"), "workflow.step("),
    "socket": (lambda: socket.socket(), "workflow.step("),
    "connect": (lambda: socket.create_connection(("127.0.0.1", 1)), "workflow.step("),
    "subprocess": (lambda: subprocess.run([sys.executable, "-V"], check=False), "workflow.step("),
    "thread": (lambda: threading.Thread(target=print).start(), "workflow.step("),
}


def run_of(act: Callable[[], object]) -> Any:
    """Return the close of a workflow that does one thing."""

    async def run() -> str:
        try:
            act()
        except WorkflowUsageError as error:
            return str(error)
        return "nothing"

    worker = FakeWorker(code_of(run), FakeNode())
    worker.decide()
    assert isinstance(worker.node.closed, h.WorkflowExecutionCompleted)
    return worker.node.closed.result.decode()


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_guard_names_what_to_use_instead(name: str) -> None:
    act, remedy = FORBIDDEN[name]
    assert remedy in run_of(act)


def test_outside_of_workflows_nothing_is_guarded() -> None:
    run_of(lambda: None)
    assert time.time() > 0
    assert random.random() < 1
    assert FILE.read_text("utf-8")
    assert time.time.__module__ == "time"


def test_guards_are_installed_once_and_leave_classes_as_they_are() -> None:
    run_of(lambda: None)
    found: list[object] = []
    outside = (time.time, random.choice, asyncio.gather)
    assert run_of(lambda: found.append((time.time, random.choice, asyncio.gather))) == '"nothing"'
    assert found == [outside]

    class Dice(random.SystemRandom):
        pass

    assert isinstance(Dice(), random.SystemRandom)
    assert 0 <= Dice().random() < 1
    assert "workflow.rng()" in run_of(lambda: Dice())


def test_asyncio_is_unchanged_outside_of_workflows() -> None:
    async def use() -> list[Any]:
        first, second = await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))
        third = await asyncio.wait_for(asyncio.sleep(0, 3), 5)
        return [first, second, third, *[await one for one in asyncio.as_completed([asyncio.sleep(0, 4)])]]

    run_of(lambda: None)
    assert asyncio.run(use()) == [1, 2, 3, 4]


def test_threads_of_steps_are_not_guarded_while_workflow_code_runs() -> None:
    inside, done = threading.Event(), threading.Event()
    found: list[object] = []

    def step() -> None:
        inside.wait()
        try:
            found.append((time.time(), random.random(), FILE.read_bytes()))
        finally:
            done.set()  # otherwise the workflow would wait for ever

    thread = threading.Thread(target=step)
    thread.start()

    def act() -> None:
        inside.set()
        done.wait()

    assert run_of(act) == '"nothing"'
    thread.join()
    assert len(found) == 1


def test_unguarded_lifts_the_guards() -> None:
    def act() -> None:
        with workflow.unguarded():
            assert time.time() > 0
            FILE.read_bytes()

    assert run_of(act) == '"nothing"'


def test_logging_importing_and_side_effects_pass(tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "log.txt", delay=True)
    logger = logging.getLogger("test_guards")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    (tmp_path / "imported_by_a_workflow.py").write_text("import time\nNOW = time.time()\n")
    sys.path.insert(0, str(tmp_path))

    def act() -> None:
        logger.info("written by a workflow")
        import imported_by_a_workflow  # type: ignore[import-not-found]

        assert imported_by_a_workflow.NOW > 0
        assert workflow.side_effect(lambda: time.time()) > 0

    try:
        assert run_of(act) == '"nothing"'
    finally:
        sys.path.remove(str(tmp_path))
        logger.removeHandler(handler)
        handler.close()
    assert "written by a workflow" in (tmp_path / "log.txt").read_text()


LOOP_METHODS: dict[str, Callable[[], Any]] = {
    "thread": lambda: asyncio.to_thread(print),
    "connection": lambda: asyncio.open_connection("127.0.0.1", 1),
    "subprocess": lambda: asyncio.create_subprocess_exec("true"),
}


@pytest.mark.parametrize("name", LOOP_METHODS)
def test_the_loop_has_no_threads_sockets_and_processes(name: str) -> None:
    async def run() -> str:
        try:
            await LOOP_METHODS[name]()
        except WorkflowUsageError as error:
            return str(error)
        return "nothing"

    worker = FakeWorker(code_of(run), FakeNode())
    worker.decide()
    assert b"step" in worker.node.closed.result
