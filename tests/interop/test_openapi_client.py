"""A client that openapi-python-client generates from the OpenAPI file of a node works."""

from __future__ import annotations

import http.client
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.conftest import leave_out
from tests.system.processes import mainspring, node

from .libraries import PROGRAMS, PYTHON

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.interop

GENERATOR = PYTHON.parent / "openapi-python-client"


def test_a_generated_client_submits_shows_lists_and_cancels(tmp_path: Path) -> None:
    if not GENERATOR.exists():
        leave_out("openapi-python-client")
    options = ("serve", "--gearman", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", "memory://")
    with node(*options, cwd=tmp_path, faces=("gearman", "http")) as running:
        server = running.ports["http"]
        create = ("tokens", "create", "--name", "ci", "--role", "developer", "--server", running.address)
        token = mainspring(*create, cwd=tmp_path).stdout.decode().strip()
        connection = http.client.HTTPConnection(server, timeout=30)
        connection.request("GET", "/api/v1/openapi.json", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        assert answer.status == 200
        (tmp_path / "openapi.json").write_bytes(answer.read())
        connection.close()
        generate = [str(GENERATOR), "generate", "--path", "openapi.json", "--output-path", "generated"]
        generated = subprocess.run(generate, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert "Unable to parse" not in generated.stdout + generated.stderr
        program = [
            str(PYTHON),
            str(PROGRAMS / "openapi_client.py"),
            str(tmp_path / "generated"),
            f"http://{server}",
            token,
        ]
        used = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert used.stdout.splitlines() == [
        "submitted True",
        "shown resize pending True",
        "listed [True]",
        "cancelled cancelled",
        "refused 404",
    ], used.stderr
