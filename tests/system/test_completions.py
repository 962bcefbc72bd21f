"""Jobs that await their completion, through kills of node and worker: an acknowledged answer is on disk."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from .http_port import ask
from .processes import mainspring, node
from .servers import eventually

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

OPTIONS = ("--gearman", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", "sqlite:///jobs.db")
JSON = {"Content-Type": "application/json"}
APP = """
import pathlib
from mainspring import App, current_job

app = App()

@app.task(executor="{executor}")
def review(document: str) -> str:
    token = current_job().completion_token(expires="2d")
    with pathlib.Path("tokens").open("a") as tokens:
        tokens.write(token + chr(10))
"""


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_an_acknowledged_answer_is_on_disk_when_the_node_is_killed(tmp_path: Path, executor: str) -> None:
    (tmp_path / "reviews.py").write_text(APP.format(executor=executor))
    tokens = tmp_path / "tokens"
    with node("run", "reviews.py", *OPTIONS, cwd=tmp_path, faces=("gearman", "http")) as running:
        server = ("--server", running.address)
        handle = mainspring("submit", "review", '["a"]', "--background", *server, cwd=tmp_path).stdout.decode().strip()

        def shown() -> dict[str, object]:
            found: dict[str, object] = json.loads(
                mainspring("jobs", "show", handle, "--json", *server, cwd=tmp_path).stdout
            )
            return found

        eventually(lambda: shown().get("awaits_until"), "the function has returned")
        running.signal(signal.SIGKILL)
        running.wait()
    (token,) = tokens.read_text().split()
    # No worker is needed, and none has the job.
    with node("serve", *OPTIONS, cwd=tmp_path, faces=("gearman", "http")) as running:
        path = f"/api/v1/completions/{token}"
        status, _, answer = ask(running.ports["http"], "POST", path, '{"result": "fine"}', **JSON)
        running.signal(signal.SIGKILL)
        running.wait()
        assert (status, answer["state"]) == (200, "completed")
        assert token not in "".join(log.read_text() for log in tmp_path.glob("node-*.log"))
    with node("serve", *OPTIONS, cwd=tmp_path, faces=("gearman", "http")) as running:
        server = ("--server", running.address)
        assert mainspring("jobs", "result", handle, *server, cwd=tmp_path).stdout == b'"fine"'
        repeated = mainspring("completions", "complete", token, "--result", '"fine"', *server, cwd=tmp_path)
        assert repeated.stderr == b""
        assert repeated.stdout.decode() == "token 1: completed, as before\n"
        status, _, problem = ask(running.ports["http"], "POST", path, '{"result": "other"}', **JSON)
        assert (status, problem["type"].rpartition(":")[2]) == (409, "conflict")
        other = mainspring("completions", "fail", token, "why", *server, cwd=tmp_path)
        assert (other.returncode, b"with another answer" in other.stderr) == (1, True)
        by_hand = mainspring("completions", "finish", handle, "--result", "1", *server, cwd=tmp_path)
        assert (by_hand.returncode, b"with another answer" in by_hand.stderr) == (1, True)
        unknown = mainspring("completions", "heartbeat", "-", *server, cwd=tmp_path, input=b"msc_x\n")
        assert unknown.returncode == 4
    assert tokens.read_text().split() == [token], "the function has run once"
    assert token.encode() not in (tmp_path / "jobs.db").read_bytes()
