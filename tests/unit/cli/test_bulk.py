"""Commands that change many jobs."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from mainspring.cli import operations
from mainspring.cli.display import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from mainspring.cli.main import main
from mainspring.client.blocking import Client

from .terminal import Terminal

JOB = {"handle": "H:n:1", "function": "f", "state": "failed", "created_at": "2030-01-31T12:00:00Z", "error": "E: m"}


class Server:
    """A server with one operation."""

    def __init__(self, matched: int = 3, *, at_least: bool = False) -> None:
        self.matched = matched
        self.at_least = at_least
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.shown: list[dict[str, Any]] = [self.operation("done", matched)]
        """The answers to requests for the operation, in order."""

    def operation(self, state: str, done: int, **more: Any) -> dict[str, Any]:
        return {
            "id": "op-7",
            "action": "retry",
            "state": state,
            "matched": self.matched,
            "at_least": self.at_least,
            "done": done,
            "outcomes": {"retried": done},
            "why": None,
            "failures": [],
        } | more

    def call(self, name: str, params: dict[str, Any], *_: Any) -> dict[str, Any]:
        self.requests.append((name, params))
        if name == "operations.show":
            shown = self.shown.pop(0)
            if shown is INTERRUPT:
                raise KeyboardInterrupt
            return shown
        started = {"matched": self.matched, "at_least": self.at_least, "sample": [JOB]}
        return started | {"id": None if params.get("dry_run") else "op-7"}


INTERRUPT: dict[str, Any] = {}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    found = Server()
    monkeypatch.setattr(Client, "call", found.call)
    monkeypatch.setattr(operations, "POLL_DELAY", 0)
    return found


class Keyboard(io.StringIO):
    """Standard input of a user at a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_filter_starts_an_operation_and_its_result_is_printed(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.shown = [server.operation("running", 1), server.operation("done", 3)]
    arguments = "--state failed --state expired --function f --error E --tag t --created-before 2030-01-31T12:00:00Z"
    assert main(["jobs", "retry", *arguments.split(), "--reason", "r", "--rate", "5", "--expect", "9"]) == EXIT_DONE
    assert server.requests[0] == (
        "operations.start",
        {
            "action": "retry",
            "filter": {
                "state": ["failed", "expired"],
                "function": "f",
                "error_type": "E",
                "tag": "t",
                "created_to": "2030-01-31T12:00:00Z",
            },
            "expect": 9,
            "reason": "r",
            "rate": 5.0,
        },
    )
    assert [name for name, _ in server.requests[1:]] == ["operations.show"] * 2
    assert capsys.readouterr().out.split() == ["operation:", "op-7", "state:", "done", "retried:", "3"]


def test_a_dry_run_counts_and_shows_examples(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.matched, server.at_least = 20_000, True
    assert main(["jobs", "cancel", "--function", "f", "--dry-run"]) == EXIT_DONE
    assert server.requests == [("operations.start", {"action": "cancel", "filter": {"function": "f"}, "dry_run": True})]
    head, *table = capsys.readouterr().out.splitlines()
    assert head == "cancel: ≥ 20,000 jobs match; nothing was changed"
    assert table[1].split("\t")[:3] == ["H:n:1", "f", "failed"]
    assert main(["jobs", "delete", "--function", "f", "--dry-run", "--json"]) == EXIT_DONE
    assert json.loads(capsys.readouterr().out)["matched"] == 20_000
    server.matched, server.at_least = 1, False
    assert main(["jobs", "cancel", "--function", "f", "--dry-run"]) == EXIT_DONE
    assert capsys.readouterr().out.startswith("cancel: 1 job matches; ")


def test_an_operation_that_matches_nothing_says_so(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.matched = 0
    for action, text in (("retry", operations.NOTHING_MATCHES), ("backfill", operations.NO_TIMES)):
        server.shown = [server.operation("done", 0, action=action)]
        assert main(["jobs", "retry", "--state", "failed"]) == EXIT_DONE
        assert capsys.readouterr().err == f"mainspring: {text}\n"
    server.requests.clear()
    monkeypatch.setattr(sys, "stdin", Keyboard(""))
    assert main(["jobs", "retry", "--state", "failed"]) == EXIT_DONE
    assert [params["dry_run"] for _, params in server.requests] == [True], "a user at a terminal gets no operation"
    assert capsys.readouterr().err == f"mainspring: {operations.NOTHING_MATCHES}\n"


@pytest.mark.parametrize(
    ("matched", "typed", "code"),
    [
        (3, "y", EXIT_DONE),
        (3, "", EXIT_FAILED),
        (3, "n", EXIT_FAILED),
        (1234, "y", EXIT_FAILED),
        (1234, "1234", EXIT_DONE),
        (1234, "1,234", EXIT_DONE),
    ],
)
def test_a_user_at_a_terminal_confirms(
    server: Server, monkeypatch: pytest.MonkeyPatch, matched: int, typed: str, code: int
) -> None:
    server.matched = matched
    monkeypatch.setattr(sys, "stdin", Keyboard(typed + "\n"))
    assert main(["jobs", "retry", "--state", "failed"]) == code
    started = [params for name, params in server.requests if name == "operations.start"]
    assert started[0]["dry_run"]
    assert len(started) == (2 if code == EXIT_DONE else 1)


def test_yes_confirms(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Keyboard(""))
    assert main(["jobs", "retry", "--state", "failed", "--yes"]) == EXIT_DONE
    assert [name for name, _ in server.requests] == ["operations.start", "operations.show"]


def test_a_terminal_shows_a_bar(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.shown = [server.operation("running", 1), server.operation("done", 3)]
    output = Terminal()
    monkeypatch.setattr(sys, "stderr", output)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["jobs", "retry", "--state", "failed"]) == EXIT_DONE
    assert "retry 3" in output.getvalue()


def test_elsewhere_lines_show_the_progress(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(operations, "LINE_DELAY", 0)
    server.shown = [server.operation("running", 1), server.operation("done", 3)]
    assert main(["jobs", "retry", "--state", "failed"]) == EXIT_DONE
    assert capsys.readouterr().err.splitlines() == ["op-7: retry 1 of 3 jobs", "op-7: retry 3 of 3 jobs"]


def test_failures_and_early_ends_have_another_exit_code(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    failure = {"handle": "H:n:2", "outcome": "conflict", "message": "its unique is live again"}
    server.shown = [server.operation("done", 3, failures=[failure])]
    assert main(["jobs", "retry", "--state", "failed"]) == EXIT_FAILED
    assert capsys.readouterr().err == "mainspring: H:n:2: its unique is live again\n"
    server.shown = [server.operation("aborted", 1, why="aborted by ann")]
    assert main(["operations", "show", "op-7", "--follow"]) == EXIT_FAILED
    assert "aborted by ann" in capsys.readouterr().out


def test_an_interrupt_leaves_the_operation_running(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.shown = [INTERRUPT]
    with pytest.raises(SystemExit) as ended:
        main(["jobs", "retry", "--state", "failed"])
    assert ended.value.code == EXIT_INTERRUPTED
    assert "the operation goes on; end it with: mainspring operations abort op-7" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cancel"], "name the jobs"),
        (["delete"], "name the jobs"),
        (["retry", "H:n:1", "--function", "f"], "not by both"),
        (["retry", "--function", "f", "--expect", "-1"], "-1"),
        (["retry", "--function", "f", "--args", "x"], "named by their handles"),
    ],
)
def test_wrong_usage(server: Server, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["jobs", *arguments]) == EXIT_USAGE
    assert message in capsys.readouterr().err
    assert server.requests == []


def test_options_of_operations_apply_to_handles(server: Server) -> None:
    assert main(["jobs", "delete", "H:n:1", "H:n:2", "--dry-run"]) == EXIT_DONE
    assert server.requests == [
        ("operations.start", {"action": "delete", "handles": ["H:n:1", "H:n:2"], "dry_run": True})
    ]


def test_the_jobs_of_an_operation_are_listed_page_by_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = {
        None: {"items": [{"handle": "H:n:1", "outcome": "retried"}], "next": "4"},
        "4": {"items": [{"handle": "H:n:2", "outcome": "conflict"}], "next": None},
    }
    monkeypatch.setattr(Client, "call", lambda _, __, params, *___: pages[params.get("cursor")])
    assert main(["operations", "jobs", "op-7"]) == EXIT_DONE
    assert capsys.readouterr().out == "handle\toutcome\nH:n:1\tretried\nH:n:2\tconflict\n"


def test_a_function_of_a_filter_may_have_any_bytes(server: Server) -> None:
    assert main(["jobs", "cancel", "--function", "a\udcff", "--dry-run"]) == EXIT_DONE
    assert server.requests[-1][1]["filter"] == {"function": "a\\xff"}
