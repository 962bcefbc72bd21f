"""``mainspring nodes show`` against an answer of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.cli.main import main
from mainspring.client.blocking import Client

if TYPE_CHECKING:
    import pytest

NODE: dict[str, Any] = {
    "name": "n1\x1b[2J",
    "term": 7,
    "state": "live",
    "address": None,
    "slots": 4,
    "prefetch": 8,
    "jobs": 2,
    "weight": 1,
    "functions": ["mail", "pay\nments"],
    "beats": 3,
    "lease": 15.0,
    "started_at": "2030-01-31T12:00:00Z",
    "version": "1.0",
    "lease_left": 9.5,
    "strategy": "work",
    "recoveries": [
        {"nodes": ["n2", "n3"], "terms": [5, 6], "jobs": 12, "at": "2030-01-31T11:59:00Z"},
        {"nodes": ["n4"], "terms": [4], "jobs": 1, "at": "2030-01-31T11:00:00Z"},
    ],
}


def test_a_node_is_shown_with_all_that_it_reports(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def call(_: Client, method: str, params: dict[str, Any], timeout: float | None = None) -> Any:
        del timeout
        asked.append((method, params))
        return NODE

    monkeypatch.setattr(Client, "call", call)
    assert main(["nodes", "show", "n1"]) == 0
    ((method, params),) = asked
    assert (method, params["node"]) == ("nodes.show", "n1")
    lines = [line.split(":", 1) for line in capsys.readouterr().out.splitlines()]
    shown = {name: value.strip() for name, value in lines}
    assert set(shown) == set(NODE), "one line for each, also with a line break in a name"
    assert shown["name"] == r"n1\x1b[2J"
    assert shown["functions"] == r"mail pay\nments"
    assert (shown["address"], shown["prefetch"], shown["state"]) == ("-", "8", "live")
    assert (shown["lease"], shown["lease_left"]) == ("15s", "9.5s")
    assert shown["recoveries"] == "12 of n2 n3 at 2030-01-31T11:59:00Z, 1 of n4 at 2030-01-31T11:00:00Z"
