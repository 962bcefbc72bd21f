"""A node that demands tokens, with its commands, clients and workers; and a token that appears nowhere."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest

from mainspring import App
from mainspring.errors import ForbiddenError

from .processes import mainspring, node

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

PROGRAM = """
from mainspring import App

app = App()


@app.task
def double(number: int) -> int:
    return 2 * number
"""


def an_app_has_the_rights_of_its_token(server: str, developer: str, viewer: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAINSPRING_TOKEN", viewer)
        app = App(server=server)
        assert [one.function for one in app.functions.list()] == ["double"]
        assert {job.row.state for job in app.jobs.list(function="double")} == {"succeeded"}
        with pytest.raises(ForbiddenError):
            app.functions.pause("double")
        with pytest.raises(ForbiddenError):
            app.schedules.add("hourly", every="1h", function="double", args=[1])
        app.close()
        patch.setenv("MAINSPRING_TOKEN", developer)
        app = App(server=server)
        assert app.functions.pause("double").paused_by == "ci"
        assert not app.functions.resume("double").paused
        app.close()


def test_a_node_demands_tokens_and_shows_none(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    door = f"unix:{tmp_path / 'door.sock'}"
    options = ("--store", "sqlite:///jobs.db", "--require-token", "--log-level", "debug")
    ports = ("--gearman", f"{door},127.0.0.1:0", "--http", "127.0.0.1:0")
    with node("run", "app.py", *options, *ports, cwd=tmp_path, faces=("gearman", "http")) as running:

        def ask(*arguments: str, token: str = "", server: str = running.address) -> tuple[int, str]:
            done = mainspring(*arguments, "--server", server, cwd=tmp_path, MAINSPRING_TOKEN=token)
            return done.returncode, (done.stdout + done.stderr).decode()

        code, out = ask("status")
        assert (code, "MAINSPRING_TOKEN" in out) == (1, True)
        with socket.create_connection(("127.0.0.1", running.port), 10) as plain:
            plain.sendall(b"status\n")
            assert plain.makefile("rb").read().startswith(b"ERR TOKEN_REQUIRED")
        code, out = ask("tokens", "create", "--name", "ci", "--role", "developer", server=door)
        secret = out.strip()
        assert (code, secret[:3], len(secret)) == (0, "ms_", 51)
        assert ask("submit", "double", "21", token=secret)[1].strip() == "42"
        assert ask("tokens", "list", token=secret)[0] != 0
        assert ask("whoami", token=secret[:-1] + ("A" if secret[-1] != "A" else "B"))[0] == 1
        assert json.loads(ask("whoami", "--json", token=secret)[1])["name"] == "ci"
        shown = ask("audit", "list", "--everywhere", "--json", server=door)[1]
        assert {act["what"] for act in json.loads(shown)} >= {"tokens.create", "tokens.list"}
        viewer = ask("tokens", "create", "--name", "eye", "--role", "viewer", server=door)[1].strip()
        an_app_has_the_rights_of_its_token(running.address, secret, viewer)
        listed = ask("tokens", "list", "--json", server=door)[1]
        assert ask("tokens", "revoke", "ci", server=door)[0] == 0
        assert ask("submit", "double", "21", token=secret)[0] == 1
        with socket.create_connection(("127.0.0.1", int(running.ports["http"].rpartition(":")[2])), 10) as http:
            http.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            metrics = http.makefile("rb").read()
    body = secret.removeprefix("ms_").encode()
    places = {
        "audit": shown.encode(),
        "list": listed.encode(),
        "metrics": metrics,
        "log": running.log.read_bytes(),
        "store": b"".join(path.read_bytes() for path in tmp_path.glob("jobs.db*")),
    }
    assert [name for name, content in places.items() if body in content] == []
