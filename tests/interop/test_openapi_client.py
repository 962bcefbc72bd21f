"""A client that openapi-python-client generates from the OpenAPI file of a node works."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.conftest import leave_out
from tests.system.http_port import ask
from tests.system.processes import mainspring, node

from .libraries import PROGRAMS, PYTHON

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.processes import Node

pytestmark = pytest.mark.interop

GENERATOR = PYTHON.parent / "openapi-python-client"
OPTIONS = ("serve", "--gearman", "127.0.0.1:0")
FACES = ("gearman", "http")


def new_token(running: Node, directory: Path) -> str:
    create = ("tokens", "create", "--name", "ci", "--role", "developer", "--server", running.address)
    return mainspring(*create, cwd=directory).stdout.decode().strip()


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the client."""
    if not GENERATOR.exists():
        leave_out("openapi-python-client")
    directory = tmp_path_factory.mktemp("client")
    with node(*OPTIONS, "--http", "127.0.0.1:0", "--store", "memory://", cwd=directory, faces=FACES) as running:
        bearer = {"Authorization": f"Bearer {new_token(running, directory)}"}
        status, _, document = ask(running.ports["http"], "GET", "/api/v1/openapi.json", **bearer)
        assert status == 200
    (directory / "openapi.json").write_text(json.dumps(document))
    generate = [str(PYTHON), "-m", "openapi_python_client", "generate", "--path", "openapi.json"]
    done = subprocess.run(
        [*generate, "--output-path", "generated"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Unable to parse" not in done.stdout + done.stderr
    return directory / "generated"


def command(program: str, generated: Path, server: str, token: str) -> list[str]:
    """Return the arguments that run a program of the client."""
    return [str(PYTHON), str(PROGRAMS / program), str(generated), f"http://{server}", token]


def test_a_generated_client_submits_shows_lists_and_cancels(generated: Path, tmp_path: Path) -> None:
    with node(*OPTIONS, "--http", "127.0.0.1:0", "--store", "memory://", cwd=tmp_path, faces=FACES) as running:
        program = command("openapi_client.py", generated, running.ports["http"], new_token(running, tmp_path))
        used = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert used.stdout.splitlines() == [
        "submitted True",
        "shown resize pending True",
        "listed [True]",
        "cancelled cancelled",
        "refused 404",
    ], used.stderr


def test_a_generated_client_follows_a_job_beyond_the_death_of_the_node(
    generated: Path, tmp_path: Path, free_port: int
) -> None:
    http = f"127.0.0.1:{free_port}"
    options = (*OPTIONS, "--http", http, "--store", "sqlite:///jobs.db")
    with node(*options, cwd=tmp_path, faces=FACES) as first:
        token = new_token(first, tmp_path)
        program = command("openapi_follow.py", generated, http, token)
        follower = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        try:
            assert follower.stdout is not None
            handle = follower.stdout.readline().strip()
            assert follower.stdout.readline() == "pending\n"
            first.process.kill()
            first.wait()
            with node(*options, cwd=tmp_path, faces=FACES):
                assert follower.stdout.readline() == "pending\n", "a stream begins with the state"
                cancel = f"/api/v1/namespaces/default/jobs/{handle}/cancel"
                bearer = {"Authorization": f"Bearer {token}", "Content_Type": "application/json"}
                assert ask(http, "POST", cancel, "{}", **bearer)[0] == 200
                assert follower.stdout.read().splitlines() == ["cancelled", "the end"]
        finally:
            follower.kill()
            follower.communicate()
