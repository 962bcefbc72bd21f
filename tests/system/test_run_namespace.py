"""``mainspring run`` with Gearman ports that have a namespace."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from mainspring.client.blocking import Client
from mainspring.client.environment import parse_servers

from .processes import mainspring, node

if TYPE_CHECKING:
    from pathlib import Path

APP = """
from mainspring import App

app = App()

@app.task
def double(number: int) -> int:
    return 2 * number

@app.task
def both(number: int) -> int:
    return double.submit(number).result() + 1
"""


@pytest.mark.parametrize(
    ("ports", "namespace"),
    [("{server}/team", ()), ("127.0.0.1:0/team,{server}", ("--namespace", "other"))],
    ids=["of-the-port", "another"],
)
def test_the_workers_of_run_work_in_their_namespace(
    tmp_path: Path, free_port: int, ports: str, namespace: tuple[str, ...]
) -> None:
    (tmp_path / "app.py").write_text(APP)
    server = f"127.0.0.1:{free_port}"
    gearman = ports.format(server=server)
    with node("run", "app.py", "--store", "memory://", "--gearman", gearman, *namespace, cwd=tmp_path):
        done = mainspring("submit", "both", "[4]", *namespace, cwd=tmp_path, MAINSPRING_SERVER=server)
        assert (done.returncode, done.stdout) == (0, b"9"), done
        named = namespace[-1] if namespace else "team"
        with closing(Client(parse_servers(server), namespace=named)) as client:
            (listed,) = client.call("namespaces.nodes", {})["items"]
        assert (listed["workers"] > 0, listed["functions"]) == (True, ["both", "double"])
