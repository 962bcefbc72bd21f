"""Hooks and values of real worker processes: starts that fail, graceful stops, recycling, and kills."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .processes import Node, mainspring, node
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

APP = """
import os, time
from collections.abc import Iterator
from pathlib import Path
from mainspring import App, CurrentJob, Provide

app = App()

def note(line: str) -> None:
    with Path("trace").open("a") as file:
        file.write(f"{os.getpid()} {line}\\n")

@app.on_worker_start
def connect() -> Iterator[None]:
    if not Path("up").exists():
        raise ConnectionError("the database is down")
    note("connects")
    yield
    time.sleep(2.5)  # longer than a blocked loop may be at the end
    note("disconnects")

@app.middleware
def around(job: CurrentJob) -> Iterator[None]:
    note(f"begins {job.function}")
    try:
        yield
    finally:
        note(f"ends {job.function}")

def engine() -> Iterator[int]:
    note("opens")
    yield os.getpid()
    note("closes")

@app.task
def thread(pid: int = Provide(engine, per="worker")) -> int:
    return pid

@app.task(executor="process")
def process(pid: int = Provide(engine, per="worker")) -> int:
    return pid

@app.task
def frozen(pid: int = Provide(engine, per="worker")) -> None:
    time.sleep(60)
"""


class Trace:
    """The lines that the processes have noted."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "trace"

    def of(self, pid: int) -> list[str]:
        """Return those of a process."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [text for line in lines for number, _, text in [line.partition(" ")] if int(number) == pid]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Node]:
    (tmp_path / "app.py").write_text(APP)
    with node("serve", "--gearman", "127.0.0.1:0", "--store", "memory://", cwd=tmp_path) as running:
        yield running


def submit(server: Node, directory: Path, task: str) -> int:
    done = mainspring("submit", task, "--server", server.address, cwd=directory)
    assert done.returncode == 0, done
    found: int = json.loads(done.stdout)
    return found


def worker(server: Node, directory: Path, *options: str) -> list[str]:
    return ["worker", "app.py", "--server", server.address, *options]


def test_a_start_that_fails_is_shown_and_tried_again(tmp_path: Path, server: Node) -> None:
    with node(*worker(server, tmp_path), cwd=tmp_path, faces=()) as running:
        eventually(lambda: running.log.read_text().count("the worker cannot start") >= 2, "it is tried again")
        text = running.log.read_text()
        assert "connect, a function of on_worker_start, failed: ConnectionError: the database is down" in text
        assert 'File "' in text
        assert "app.py" in text
        assert "around.py" not in text  # the traceback begins with the user's own code
        assert running.process.poll() is None
        (tmp_path / "up").touch()
        running.await_log("connected")
        pid = submit(server, tmp_path, "thread")
        assert running.stop() == 0
    assert Trace(tmp_path).of(pid) == ["connects", "begins thread", "opens", "ends thread", "closes", "disconnects"]
    assert "frozen" not in running.log.read_text()


def test_processes_close_everything_at_a_stop_and_at_recycling(tmp_path: Path, server: Node) -> None:
    (tmp_path / "up").touch()
    with node(*worker(server, tmp_path, "--max-jobs", "2"), cwd=tmp_path, faces=()) as running:
        running.await_log("connected")
        trace = Trace(tmp_path)
        child = submit(server, tmp_path, "process")
        first = submit(server, tmp_path, "thread")
        assert child != first
        expected = ["connects", "begins {}", "opens", "ends {}", "closes", "disconnects"]
        for pid, name in ((child, "process"), (first, "thread")):
            eventually(lambda pid=pid: trace.of(pid)[-1] == "disconnects", "it is recycled")  # type: ignore[misc]
            assert trace.of(pid) == [line.format(name) for line in expected]
        second = submit(server, tmp_path, "thread")
        assert second not in {first, child}
        assert running.stop() == 0
        assert trace.of(second)[-1] == "disconnects"


def test_a_frozen_thread_is_closed_at_the_end_and_a_kill_runs_nothing(tmp_path: Path, server: Node) -> None:
    (tmp_path / "up").touch()
    with node(*worker(server, tmp_path, "--grace", "0s"), cwd=tmp_path, faces=()) as running:
        running.await_log("connected")
        trace = Trace(tmp_path)
        killed = submit(server, tmp_path, "thread")
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: running.log.read_text().count("connected") == 2, "another process is started")
        assert trace.of(killed) == ["connects", "begins thread", "opens", "ends thread"]
        second = submit(server, tmp_path, "thread")
        mainspring("submit", "frozen", "--background", "--server", server.address, cwd=tmp_path)
        eventually(lambda: trace.of(second)[-1] == "begins frozen", "it begins")
        assert running.stop() == 0
        assert trace.of(second)[-3:] == ["ends frozen", "closes", "disconnects"]


SENTRY = """
import json
import sentry_sdk
from pathlib import Path
from sentry_sdk.transport import Transport
from mainspring import App, Retry

class ToFile(Transport):
    def capture_envelope(self, envelope):
        with Path("events").open("a") as file:
            file.write(json.dumps(envelope.get_event(), default=str) + "\\n")

init = sentry_sdk.init
sentry_sdk.init = lambda _: init("http://key@localhost/1", transport=ToFile)

from errors import report_to_sentry

app = App()
report_to_sentry(app)

def fails() -> None:
    raise ValueError("of a task")

async def fails_later() -> None:
    fails()

again = Retry(max_attempts=2, initial=0.01)
app.task(name="thread", retry=again)(fails)
app.task(name="process", retry=again, executor="process")(fails)
app.task(name="coroutine", retry=again)(fails_later)
"""


def test_sentry_gets_one_event_for_each_job_of_each_executor(tmp_path: Path, server: Node) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "sentry.md").read_text("utf-8")
    (tmp_path / "errors.py").write_text(page.partition('```python title="errors.py"\n')[2].partition("```")[0])
    (tmp_path / "app.py").write_text(SENTRY)
    with node(*worker(server, tmp_path), cwd=tmp_path, faces=()) as running:
        running.await_log("connected")
        for task in ("thread", "process", "coroutine"):
            done = mainspring("submit", task, "--server", server.address, cwd=tmp_path)
            assert b"ValueError: of a task" in done.stderr
        assert running.stop() == 0
        assert running.log.read_text().count("attempt failed") == 6  # which are no events
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [(one["transaction"], one["contexts"]["job"]["attempt"], one["level"]) for one in events] == [
        ("thread", 2, "error"),
        ("process", 2, "error"),
        ("coroutine", 2, "error"),
    ]
