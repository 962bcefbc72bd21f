"""The log lines of tasks in threads, coroutines and processes, and of failed attempts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.interop.packets import Kind

from .extension import ExtensionPeer
from .processes import mainspring, node
from .servers import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from .processes import Node

pytestmark = pytest.mark.system

APP = """
import asyncio, logging, threading
import structlog
from mainspring import App, JobLogFilter, add_job_fields, current_job

{configuration}

app = App()
log = logging.getLogger("x")

def say(where: str) -> str:
    log.debug("debug in %s", where)
    log.info("info in %s", where)
    structlog.get_logger("y").info("structured", where=where)
    logging.getLogger("kazoo.client").info("noise")
    logging.getLogger("kazoo.client").warning("trouble in %s", where)
    print("printed in", where, flush=True)
    return current_job().handle

@app.task
def thread() -> str:
    return say("thread")

@app.task
async def coroutine() -> str:
    handle = say("coroutine")
    await asyncio.to_thread(log.info, "a thread of a coroutine")
    return handle

@app.task(executor="process")
def process() -> str:
    return say("process")
"""
EXECUTORS = ("thread", "coroutine", "process")


def run_all(running: Node, directory: Path) -> dict[str, str]:
    """Run each task once, and return the handles by function."""
    handles = {}
    for executor in EXECUTORS:
        ended = mainspring("submit", executor, cwd=directory, MAINSPRING_SERVER=running.address)
        assert ended.returncode == 0, ended.stderr.decode()
        handles[executor] = json.loads(ended.stdout)
    return handles


def entries(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def write(directory: Path, configuration: str = "") -> None:
    (directory / "app.py").write_text(APP.format(configuration=configuration))


@pytest.mark.parametrize("level", ["info", "debug", "warning"])
def test_log_lines_of_tasks_follow_the_level_and_name_the_job(tmp_path: Path, level: str) -> None:
    write(tmp_path)
    options = ("--store", "memory://", "--gearman", "127.0.0.1:0", "--log-level", level)
    with node("run", "app.py", *options, cwd=tmp_path, worker=level != "warning") as running:
        handles = run_all(running, tmp_path)
        running.stop()
        lines = entries(running.log.read_text())
    own = [line for line in lines if line.get("logger") == "x" or line["event"] == "structured"]
    for executor in EXECUTORS:
        job = {"function": executor, "handle": handles[executor], "attempt": 1}
        logged = [line for line in own if line.get("function") == executor]
        expected = {
            "debug": [f"debug in {executor}", f"info in {executor}", "structured"],
            "info": [f"info in {executor}", "structured"],
            "warning": [],
        }[level]
        if executor == "coroutine" and level != "warning":
            expected = [*expected, "a thread of a coroutine"]
        assert [line["event"] for line in logged] == expected
        assert all(job.items() <= line.items() for line in logged)
        trouble = [line for line in lines if line["event"] == f"trouble in {executor}"]
        assert len(trouble) == 1
        assert job.items() <= trouble[0].items()
    assert not [line for line in lines if line["event"] == "noise"]
    assert not [line for line in lines if line["event"] in {"connected", "stopped"} and "handle" in line]


def test_a_configuration_of_the_users_module_is_left_alone(tmp_path: Path) -> None:
    write(
        tmp_path,
        "logging.basicConfig(level=logging.INFO, format='MINE %(function)s %(handle)s %(attempt)s %(message)s')\n"
        "logging.getLogger().handlers[0].addFilter(JobLogFilter())\n"
        "logging.info('imported')",
    )
    with node("run", "app.py", "--store", "memory://", "--gearman", "127.0.0.1:0", cwd=tmp_path) as running:
        handles = run_all(running, tmp_path)
        running.stop()
        text = running.log.read_text()
    assert "MINE - - - imported" in text
    for executor in EXECUTORS:
        assert text.count(f"MINE {executor} {handles[executor]} 1 info in {executor}\n") == 1
        assert text.count(f"info in {executor}") == 1
        assert text.count(f"trouble in {executor}") == 1
    assert text.count("noise") == len(EXECUTORS)  # the user's configuration logs it
    assert "debug in" not in text


def test_a_configuration_of_one_logger_doubles_nothing(tmp_path: Path) -> None:
    write(
        tmp_path,
        "import logging.config\n"
        "logging.config.dictConfig({'version': 1, 'disable_existing_loggers': False,\n"
        "  'formatters': {'f': {'format': 'MINE %(handle)s %(message)s'}}, 'filters': {'job': {'()': JobLogFilter}},\n"
        "  'handlers': {'h': {'class': 'logging.StreamHandler', 'formatter': 'f', 'filters': ['job']}},\n"
        "  'loggers': {'x': {'handlers': ['h'], 'level': 'DEBUG'}}})",
    )
    with node("run", "app.py", "--store", "memory://", "--gearman", "127.0.0.1:0", cwd=tmp_path) as running:
        handles = run_all(running, tmp_path)
        running.stop()
        text = running.log.read_text()
    for executor in EXECUTORS:
        assert text.count(f"MINE {handles[executor]} debug in {executor}\n") == 1
        assert text.count(f"info in {executor}") == 1
        assert len([line for line in entries(text) if line["event"] == f"trouble in {executor}"]) == 1
    assert "noise" not in text


def test_structlog_of_the_users_module_is_left_alone(tmp_path: Path) -> None:
    write(
        tmp_path,
        "structlog.configure(processors=[add_job_fields, structlog.processors.KeyValueRenderer()],\n"
        "  logger_factory=structlog.stdlib.LoggerFactory(), wrapper_class=structlog.stdlib.BoundLogger)",
    )
    with node(
        "run", "app.py", "--store", "memory://", "--gearman", "127.0.0.1:0", cwd=tmp_path, worker=False
    ) as running:
        handles = run_all(running, tmp_path)
        running.stop()
        lines = entries(running.log.read_text())
    for executor in EXECUTORS:
        (logged,) = [
            line["event"] for line in lines if "event='structured'" in line["event"] and repr(executor) in line["event"]
        ]
        assert repr(handles[executor]) in logged


def test_a_log_file_has_the_lines_of_tasks_also_after_a_move(tmp_path: Path) -> None:
    write(tmp_path)
    log = tmp_path / "mainspring.log"
    options = ("--store", "memory://", "--gearman", "127.0.0.1:0", "--log-file", log.name)
    with node("run", "app.py", *options, cwd=tmp_path, worker=False) as running:
        run_all(running, tmp_path)
        eventually(lambda: log.read_text().count("info in") == len(EXECUTORS), "the file has the lines of the tasks")
        log.rename(tmp_path / "mainspring.log.1")
        run_all(running, tmp_path)
        eventually(
            lambda: log.exists() and log.read_text().count("info in") == len(EXECUTORS), "the new file has the lines"
        )
        running.stop()
        assert "info in" not in running.log.read_text()


FAILING_APP = """
import asyncio, os
from mainspring import App, Retry

app = App()

@app.task(retry=Retry(max_attempts=2, initial=0.1))
def thread() -> None:
    raise ValueError("no good")

@app.task
async def coroutine() -> None:
    raise KeyError("k")

@app.task(executor="process")
def process() -> None:
    raise OSError("no space")

@app.task(executor="process")
def dies() -> None:
    os._exit(7)

@app.task(timeout=0.3)
async def slow() -> None:
    await asyncio.sleep(60)

@app.task
def often() -> None:
    raise ValueError("again")
"""
FAILURES = {
    ("thread", 1): ("attempt failed", "ValueError: no good"),
    ("thread", 2): ("attempt failed", "ValueError: no good"),
    ("coroutine", 1): ("attempt failed", "KeyError: 'k'"),
    ("process", 1): ("attempt failed", "OSError: no space"),
    ("dies", 1): ("attempt failed", "ProcessDied: the job's process ended by itself with exit code 7"),
    ("slow", 1): ("attempt timed out", "Timeout: the attempt ran for longer than 300ms"),
    ("plain", 1): ("attempt failed", "WorkFailed: the worker sent WORK_FAIL"),
    ("gone", 1): ("attempt lost", "its worker's connection ended"),
}


def submit(function: str, running: Node, directory: Path) -> str:
    submitted = mainspring("submit", function, "--background", cwd=directory, MAINSPRING_SERVER=running.address)
    assert submitted.returncode == 0, submitted.stderr.decode()
    return submitted.stdout.decode().strip()


def failures(running: Node) -> list[dict[str, Any]]:
    return [line for line in entries(running.log.read_text()) if line["event"].startswith("attempt ")]


@pytest.mark.parametrize("processes", ["1", "2"])
def test_each_attempt_that_failed_is_logged_once(tmp_path: Path, processes: str) -> None:
    (tmp_path / "app.py").write_text(FAILING_APP)
    options = ("--store", "sqlite:///jobs.db", "--gearman", "127.0.0.1:0", "--processes", processes)
    with node("run", "app.py", *options, cwd=tmp_path) as running:
        functions = dict.fromkeys(function for function, _ in FAILURES)
        handles = {submit(function, running, tmp_path): function for function in functions}
        with ExtensionPeer(running.port) as plain:
            plain.can_do(b"plain")
            handle, _, _ = plain.grab_assigned()
            plain.send(Kind.WORK_FAIL, handle)
            plain.sync()
        with ExtensionPeer(running.port) as gone:
            gone.can_do(b"gone")
            gone.grab_assigned()
        eventually(lambda: len(failures(running)) >= len(FAILURES), "each failed attempt has a line")
        running.stop()
        lines = failures(running)
    assert {(line["function"], line["attempt"]): (line["event"], line["error"]) for line in lines} == FAILURES
    assert len(lines) == len(FAILURES)
    for line in lines:
        assert handles[line["handle"]] == line["function"]
        assert line["level"] == "warning"
        assert (line["next_retry"] is None) == ((line["function"], line["attempt"]) not in {("thread", 1), ("gone", 1)})
        assert "exception" not in line


@pytest.mark.parametrize("option", [("--log-level", "debug"), ("--log-tracebacks",)])
def test_tracebacks_are_logged_with_the_option(tmp_path: Path, option: tuple[str, ...]) -> None:
    (tmp_path / "app.py").write_text(FAILING_APP)
    options = ("--store", "memory://", "--gearman", "127.0.0.1:0", *option)
    with node("run", "app.py", *options, cwd=tmp_path) as running:
        submit("process", running, tmp_path)
        eventually(lambda: failures(running), "the line is logged")
        (line,) = failures(running)
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("OSError: no space")
    assert "app.py" in line["exception"]


def test_a_function_that_fails_often_logs_a_few_lines_a_second(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(FAILING_APP)
    options = ("--store", "memory://", "--gearman", "127.0.0.1:0")
    with node("run", "app.py", *options, cwd=tmp_path) as running:
        with ExtensionPeer(running.port) as client:
            client.extend()
            for _ in range(300):
                client.submit_new(b"often")

        def logged_or_counted() -> int:
            lines = entries(running.log.read_text())
            left_out = [line["left_out"] for line in lines if "left_out" in line and line["function"] == "often"]
            return int(sum(left_out)) + len(failures(running))

        eventually(lambda: logged_or_counted() == 300, "all are logged or counted")
        assert len(failures(running)) < 300
