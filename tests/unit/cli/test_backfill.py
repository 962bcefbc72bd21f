"""``mainspring schedules backfill``."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.cli import operations
from mainspring.cli.display import EXIT_DONE, EXIT_FAILED, EXIT_USAGE
from mainspring.cli.main import main
from mainspring.client.blocking import Client

OPERATION = {"id": "op-7", "action": "backfill", "matched": 2, "at_least": False, "why": None, "failures": []}
TIMES = ["2030-01-01T00:00:00.000000Z", "2030-01-02T00:00:00.000000Z"]
FROM = ("--from", "2030-01-01T00:00:00Z")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []

    def call(_: Client, name: str, params: dict[str, Any], *__: Any) -> Any:
        found.append((name, params))
        if name == "operations.show":
            state = ("running", "done", "aborted")[min(len(found) - 2, 2)]
            return OPERATION | {"state": state, "done": 2, "outcomes": {"fired": 2}}
        return {"id": "op-7", "matched": 2, "at_least": False, "times": TIMES}

    monkeypatch.setattr(Client, "call", call)
    monkeypatch.setattr(operations, "POLL_DELAY", 0)
    return found


def test_a_backfill_is_followed(calls: list[tuple[str, dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--to", "2030-01-02T00:00:00Z", "--max", "2", "--rate", "5", "--reason", "r"]
    assert main(["schedules", "backfill", "a", *FROM, *options]) == EXIT_DONE
    params = {"name": "a", "from": "2030-01-01T00:00:00Z", "to": "2030-01-02T00:00:00Z"}
    assert calls[0] == ("schedules.backfill", params | {"max": 2, "rate": 5.0, "reason": "r"})
    assert [name for name, _ in calls[1:]] == ["operations.show"] * 2
    assert capsys.readouterr().out.split() == ["operation:", "op-7", "state:", "done", "fired:", "2"]
    assert main(["schedules", "backfill", "a", *FROM]) == EXIT_FAILED, "it was aborted"


def test_a_dry_run_counts(calls: list[tuple[str, dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedules", "backfill", "a", *FROM, "--dry-run"]) == EXIT_DONE
    assert calls == [("schedules.backfill", {"name": "a", "from": "2030-01-01T00:00:00Z", "dry_run": True})]
    assert capsys.readouterr().out.splitlines() == ["backfill: 2 times; nothing was run", *TIMES]
    assert main(["schedules", "backfill", "a", *FROM, "--dry-run", "--json"]) == EXIT_DONE
    assert '"matched":2' in capsys.readouterr().out


def test_wrong_usage(calls: list[tuple[str, dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedules", "backfill", "a"]) == EXIT_USAGE
    assert main(["schedules", "backfill", "a", "--from", "soon"]) == EXIT_USAGE
    assert main(["schedules", "backfill", "a", *FROM, "--max", "-1"]) == EXIT_USAGE
    assert capsys.readouterr().err.count("\n") == 3
    assert calls == []
