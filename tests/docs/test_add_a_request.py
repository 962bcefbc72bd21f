"""The patches of the page about requests and options, applied to a copy of the package, and used as a person would."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "contributing" / "add-a-request.md"
_PATCH = re.compile(r'^```diff name="(?P<name>[^"]+)"\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^--- a/(?P<path>\S+)\n\+\+\+ b/\S+\n(?P<hunks>.*?)(?=^--- a/|\Z)", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.system


def patch(name: str) -> str:
    """Return a patch of the page."""
    return next(found["text"] for found in _PATCH.finditer(PAGE.read_text("utf-8")) if found["name"] == name)


def files_of(text: str) -> dict[str, list[list[str]]]:
    """Return the changes of a patch by file, each as its lines. The lines that stay say where a change belongs."""
    return {
        found["path"]: [hunk.splitlines() for hunk in found["hunks"].split("@@\n") if hunk]
        for found in _FILE.finditer(text)
    }


def applied(text: str, directory: Path) -> Path:
    """Return a copy of the package with a patch."""
    shutil.copytree(ROOT / "src", directory / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for path, hunks in files_of(text).items():
        file = directory / path
        content = file.read_text("utf-8")
        for lines in hunks:
            before = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
            after = "".join(f"{line[1:]}\n" for line in lines)
            assert content.count(before) == 1, f"{path} has these lines {content.count(before)} times:\n{before}"
            content = content.replace(before, after)
        file.write_text(content, "utf-8")
    return directory / "src"


class Patched:
    """A server of the patched package, and its commands."""

    def __init__(self, source: Path, port: str, http: str) -> None:
        self._source = source
        self._port = port
        self._http = http
        self._token = self.command("tokens", "create", "--name", "test", "--role", "admin").strip()

    def command(self, *arguments: str) -> str:
        """Run a command, and return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "mainspring", *arguments, "--server", self._port],
            env=environment(self._source),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read(self, path: str) -> str:
        """Return the answer to GET."""
        return self._answer(urllib.request.Request(f"http://{self._http}{path}"))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to POST."""
        request = urllib.request.Request(f"http://{self._http}{path}", json.dumps(body).encode(), method="POST")
        request.add_header("content-type", "application/json")
        found: dict[str, Any] = json.loads(self._answer(request))
        return found

    def _answer(self, request: urllib.request.Request) -> str:
        request.add_header("authorization", f"Bearer {self._token}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode())


def environment(source: Path) -> dict[str, str]:
    """Return the environment of a process that imports the patched package."""
    return {**os.environ, "PYTHONPATH": str(source), "NO_COLOR": "1"}


@contextmanager
def served(source: Path, directory: Path) -> Iterator[Patched]:
    """Run a server of the patched package."""
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mainspring", "serve", "--store", "memory:"),
                *("--gearman", "127.0.0.1:0", "--http", "127.0.0.1:0"),
            ],
            env=environment(source),
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
        )
    try:
        yield Patched(source, *ports(process, log))
    finally:
        process.terminate()
        process.wait(30)


def ports(process: subprocess.Popen[bytes], log: Path) -> tuple[str, str]:
    """Return the addresses at which a server listens, once it does."""
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        text = log.read_text("utf-8")
        found = re.findall(r"127\.0\.0\.1:[1-9]\d*", text)
        if len(dict.fromkeys(found)) >= 2:
            gearman, http = list(dict.fromkeys(found))[:2]
            return gearman, http
        time.sleep(0.05)  # the log of a process is a file
    raise AssertionError(log.read_text("utf-8"))


JOBS = "/api/v1/namespaces/default/jobs"


def test_a_request_has_its_route_its_command_and_its_form(tmp_path: Path) -> None:
    text = patch("a request")
    assert len(files_of(text)) == 2
    with served(applied(text, tmp_path), tmp_path) as server:
        first, second = (server.command("submit", "thumbnail", "cat.png", "--background").strip() for _ in range(2))
        assert server.post(f"{JOBS}/{first}/hurry", {})["priority"] == "high"
        assert server.command("jobs", "hurry", second) == f"{second}\tpending\n"
        assert json.loads(server.command("jobs", "show", second, "--json"))["priority"] == "high"
        assert "/actions/jobs_hurry" in server.read(f"/jobs/{first}")
        assert "jobs_hurry" in server.read("/api/v1/openapi.json")


def test_an_option_of_a_job_is_taken_and_shown_everywhere(tmp_path: Path) -> None:
    text = patch("an option of a job")
    assert len(files_of(text)) == 6
    source = applied(text, tmp_path)
    with served(source, tmp_path) as server:
        by_command = server.command("submit", "thumbnail", "cat.png", "--background", "--note", "for ann").strip()
        by_http = server.post(JOBS, {"function": "thumbnail", "note": "for bob"})["handle"]
        assert json.loads(server.command("jobs", "show", by_command, "--json"))["note"] == "for ann"
        assert json.loads(server.read(f"{JOBS}/{by_http}"))["note"] == "for bob"
        assert '"note"' in server.read("/api/v1/openapi.json")
    program = "from mainspring import App\ntask = App().task(lambda: None, name='f')\nprint(task.options(note='x')._options.note)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(source),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "x", done.stderr
