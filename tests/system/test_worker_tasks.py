"""The tasks that workers serve: a selection of an App's tasks, and the tasks of modules that the App includes."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .processes import Node, mainspring, node
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

APP = """
import os
from mainspring import App

app = App()

@app.scheduled(every="1h", name="mail.send")
def send() -> int:
    return os.getpid()

@app.scheduled(every="1h", name="video.encode", executor="process")
def encode() -> int:
    return os.getppid()

@app.task(name="mail.bulk")
def bulk() -> int:
    return os.getpid()
"""


class Tool:
    """Runs commands against a server, and decodes their output."""

    def __init__(self, server: Node, directory: Path) -> None:
        self._server = server
        self._directory = directory

    def __call__(self, *words: str) -> Any:
        """Return the JSON that a command prints."""
        done = mainspring(*words, "--server", self._server.address, cwd=self._directory)
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    def workers(self) -> dict[str, int]:
        """Return the number of workers of each function."""
        functions = self("status", "--json")["functions"]
        return {one["function"]: one["workers"] for one in functions if one["workers"]}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Node]:
    with node("serve", "--gearman", "127.0.0.1:0", "--store", "memory://", "--no-schedules", cwd=tmp_path) as running:
        yield running


@pytest.fixture
def tool(server: Node, tmp_path: Path) -> Tool:
    return Tool(server, tmp_path)


@contextlib.contextmanager
def worker(server: Node, directory: Path, app: str, *options: str) -> Iterator[Node]:
    with node("worker", app, "--server", server.address, *options, cwd=directory, faces=()) as running:
        eventually(lambda: "connected" in running.log.read_text(), "the worker connects")
        yield running


def parent(pid: int) -> int:
    """Return a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_workers_for_some_of_the_tasks_declare_all_schedules(tmp_path: Path, server: Node, tool: Tool) -> None:
    (tmp_path / "app.py").write_text(APP)
    with (
        worker(server, tmp_path, "app.py", "--functions", "mail.*", "--not", "mail.bulk") as mail,
        worker(server, tmp_path, "app.py", "--not", "mail.*", "--processes", "2") as video,
    ):
        eventually(lambda: tool.workers() == {"mail.send": 1, "video.encode": 2}, "all have registered")
        assert parent(tool("submit", "mail.send")) == mail.process.pid
        assert parent(tool("submit", "video.encode")) == video.process.pid
        eventually(lambda: len(tool("schedules", "list", "--json")) == 2, "the schedules are declared")
    other = tmp_path / "other"
    other.mkdir()
    (other / "app.py").write_text(
        "from mainspring import App\napp = App()\n@app.scheduled(every='1h')\ndef stock(): ...\n"
    )
    with worker(server, tmp_path, "app.py", "--functions", "mail.bulk"), worker(server, other, "app.py") as second:
        eventually(lambda: "'app (2)'" in second.log.read_text(), "another project of the same name is declared")
        apps = {one["name"]: one["app"] for one in tool("schedules", "list", "--json")}
    assert apps == {"mail.send": "app", "video.encode": "app", "stock": "app (2)"}
    assert "removed" not in "".join(path.read_text() for path in tmp_path.rglob("*.log"))


def test_a_pattern_that_matches_nothing_ends_the_worker(tmp_path: Path, server: Node) -> None:
    (tmp_path / "app.py").write_text(APP)
    for options in ((), ("--processes", "2")):
        arguments = ("worker", "app.py", "--server", server.address, "--functions", "mial.*", *options)
        done = mainspring(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert b"--functions 'mial.*' matches no task of the App" in done.stderr
        assert b"did you mean 'mail.send'" in done.stderr


PACKAGE = {
    "__init__.py": "",
    "app.py": "from mainspring import App\n\napp = App()\napp.include('shop.tasks')\n",
    "tasks/__init__.py": "",
    "tasks/mail.py": """
from shop.app import app

@app.task(name="mail.send")
def send(to: str) -> str:
    return f"sent to {to}"

@app.scheduled(every="1h", name="mail.digest")
def digest() -> None: ...
""",
    "tasks/images/__init__.py": "",
    "tasks/images/sizes.py": """
import os
from shop.app import app
from shop.tasks.mail import send

@app.task(name="images.shrink", executor="process")
def shrink() -> int:
    return os.getppid()

@app.task(name="images.mail")
def mail() -> str:
    return send.submit("ann").result(timeout=20)
""",
}
FUNCTIONS = {"mail.send", "mail.digest", "images.shrink", "images.mail"}


@pytest.fixture
def package(tmp_path: Path) -> None:
    """Write a package whose modules define tasks of one App."""
    for name, text in PACKAGE.items():
        path = tmp_path / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("app", "options"), [("shop/app.py", ()), ("shop.app", ()), ("shop/app.py:app", ("--processes", "2"))]
)
@pytest.mark.usefixtures("package")
def test_a_worker_has_the_tasks_of_all_included_modules(
    tmp_path: Path, server: Node, tool: Tool, app: str, options: tuple[str, ...]
) -> None:
    # Without the working directory on Python's path, as for the installed command.
    arguments = ("worker", app, "--server", server.address, *options)
    with node(*arguments, cwd=tmp_path, faces=(), PYTHONSAFEPATH="1") as running:
        eventually(lambda: set(tool.workers()) == FUNCTIONS, "all tasks have a worker")
        assert tool("submit", "mail.send", '["bob"]') == "sent to bob"
        assert tool("submit", "images.mail") == "sent to ann"
        assert isinstance(tool("submit", "images.shrink"), int), "the task's process has included the modules, too"
        eventually(lambda: tool("schedules", "list", "--json"), "the schedule is declared")
        assert "Traceback" not in running.log.read_text()


@pytest.mark.usefixtures("package")
def test_run_has_the_tasks_of_all_included_modules(tmp_path: Path) -> None:
    options = ("--gearman", "127.0.0.1:0", "--store", "memory://", "--functions", "images.*")
    with node("run", "shop/app.py", *options, cwd=tmp_path) as running:
        tool = Tool(running, tmp_path)
        eventually(lambda: set(tool.workers()) == {"images.shrink", "images.mail"}, "its tasks have a worker")
        assert isinstance(tool("submit", "images.shrink"), int)


@pytest.mark.usefixtures("package")
def test_an_included_module_that_fails_ends_the_worker_with_its_traceback(tmp_path: Path, server: Node) -> None:
    (tmp_path / "shop" / "tasks" / "broken.py").write_text("from shop.app import app\nraise RuntimeError('oops')\n")
    done = mainspring("worker", "shop/app.py", "--server", server.address, cwd=tmp_path)
    assert done.returncode == 2
    assert b'broken.py", line 2' in done.stderr
    last = "the App includes shop.tasks, but importing shop.tasks.broken failed: RuntimeError: oops"
    assert done.stderr.decode().splitlines()[-1] == f"mainspring: {last}"
