from __future__ import annotations

import json
import re
import time
from datetime import datetime
from typing import Any

import pytest

from mainspring.cli.display import EXIT_INTERRUPTED, EXIT_NO_SERVER, EXIT_USAGE
from mainspring.cli.jobs import COLUMNS
from mainspring.cli.main import main
from mainspring.client.blocking import Client
from mainspring.errors import ConflictError, ConnectionLostError

from .terminal import shown

HANDLES = ["H:laptop:1000000000001", "H:laptop:1000000000002"]
TIME = "2030-01-31T12:00:00.123456Z"


def job(handle: str, **more: Any) -> dict[str, Any]:
    return {
        "handle": handle,
        "function": "shop.pictures.generate_thumbnails_of_album",
        "unique": "album-8c3a7f6c-53f7-4d5c-a1f1-3c7a5f",
        "state": "succeeded",
        "priority": "normal",
        "attempt": 1,
        "created_at": TIME,
        "started_at": TIME,
        "ended_at": TIME,
        "error": None,
    } | more


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The jobs of the server."""
    stored = [job(handle) for handle in HANDLES]
    monkeypatch.setattr(Client, "call", lambda *_: {"items": stored, "next": None, "searched_to": None})
    monkeypatch.setattr(time, "time", lambda: datetime.fromisoformat(TIME).timestamp() + 200)
    return stored


def listed(width: int) -> list[str]:
    """Return the lines of the list on a terminal of this width."""
    return [line.rstrip() for line in shown(lambda: main(["jobs", "list"]), width)]


LONG_ERROR = "ValueError: " + "no such thing as that " * 10


@pytest.mark.parametrize("width", [60, 80, 120, 160, 200, 250, 400])
@pytest.mark.parametrize("error", [None, LONG_ERROR], ids=["done", "failed"])
def test_a_job_has_one_line_that_fits(jobs: list[dict[str, Any]], error: str | None, width: int) -> None:
    jobs[1] |= {"error": error, "state": "failed" if error else "succeeded"}
    head, *lines = listed(width)
    assert max(map(len, (head, *lines))) <= width
    assert [line.split()[0] for line in lines] == HANDLES
    assert ("failed" if error else "succeeded") in lines[1].split()


def test_80_columns_show_the_most_important_columns(jobs: list[dict[str, Any]]) -> None:
    head, line, _ = listed(80)
    assert head.split() == ["HANDLE", "FUNCTION", "STATE", "CREATED", "ENDED"]
    assert re.split("  +", line)[1:] == ["shop.pictures.…ails_of_album", "succeeded", "3m ago", "3m ago"]
    jobs[1] |= {"error": LONG_ERROR, "state": "failed"}
    head, _, line = listed(80)
    assert head.split() == ["HANDLE", "FUNCTION", "STATE", "CREATED", "ERROR"]
    assert re.split("  +", line)[1:] == ["shop.pi…_album", "failed", "3m ago", "ValueError: no such…"]


def test_a_wide_terminal_shows_all(jobs: list[dict[str, Any]]) -> None:
    head, line, _ = listed(200)
    assert head.split() == [name.upper() for name in COLUMNS if name != "error"]
    assert line.split() == [str(jobs[0][name]).replace(".123456", "") for name in COLUMNS if name != "error"]


def test_the_longest_handle_is_whole(jobs: list[dict[str, Any]]) -> None:
    jobs[0]["handle"] = handle = "H:" + "n" * 47 + ":1000000000001"
    lines = listed(80)
    assert lines[1].split()[0] == handle
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("width", [20, 80])
def test_a_pipe_gets_everything(
    jobs: list[dict[str, Any]], width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    jobs[0]["error"] = LONG_ERROR
    assert main(["jobs", "list"]) == 0
    head, line, _ = capsys.readouterr().out.splitlines()
    assert head.split("\t") == list(COLUMNS)
    assert line.split("\t") == [str(jobs[0][name]) for name in COLUMNS]


class SearchServer:
    """A server that returns its jobs in several answers."""

    def __init__(self, *answers: dict[str, Any] | BaseException) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []

    def call(self, _method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(params)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def found(*handles: str, following: str | None = None) -> dict[str, Any]:
    return {
        "items": [job(handle) for handle in handles],
        "next": following,
        "searched_to": TIME if following else None,
    }


def search(server: SearchServer, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(Client, "call", lambda _, method, params, _timeout: server.call(method, params))
    return main(["jobs", "list", "--json", *words])


def test_a_search_continues_until_it_reaches_the_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = HANDLES
    server = SearchServer(found(following="H:n:9"), found(first, following="H:n:5"), found(second, following="H:n:2"))
    assert search(server, monkeypatch, "--limit", "2", "--function", "rare") == 0
    printed = capsys.readouterr()
    assert [one["handle"] for one in json.loads(printed.out)] == HANDLES
    assert "--cursor H:n:2" in printed.err
    shared = {"function": "rare"}
    assert server.requests == [
        {**shared, "limit": 2},
        {**shared, "limit": 2, "cursor": "H:n:9"},
        {**shared, "limit": 1, "cursor": "H:n:5"},
    ]


def test_a_search_ends_after_the_last_job(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    server = SearchServer(found(following="H:n:9"), found(HANDLES[0]))
    assert search(server, monkeypatch) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1


@pytest.mark.parametrize(
    ("stop", "code"), [(KeyboardInterrupt(), EXIT_INTERRUPTED), (ConnectionLostError("gone"), EXIT_NO_SERVER)]
)
def test_a_stopped_search_prints_its_position(
    stop: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: object
    try:
        ended = search(SearchServer(found(HANDLES[0], following="H:n:9"), stop), monkeypatch)
    except SystemExit as error:
        ended = error.code
    assert ended == code
    out, err = capsys.readouterr()
    assert [one["handle"] for one in json.loads(out)] == HANDLES[:1]
    assert f"searched back to jobs of {TIME}; continue with --cursor H:n:9" in err


def test_a_search_without_an_answer_prints_no_position(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search(SearchServer(ConnectionLostError("gone")), monkeypatch) != 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "searched" not in err


def test_an_error_names_each_job_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    errors = iter([ConflictError(f"{HANDLES[0]} is pending"), ConflictError("the store is away")])

    def refuse(*_: object) -> None:
        raise next(errors)

    monkeypatch.setattr(Client, "call", refuse)
    assert main(["jobs", "retry", *HANDLES]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"mainspring: {HANDLES[0]} is pending",
        f"mainspring: {HANDLES[1]}: the store is away",
    ]


def test_a_list_sends_its_criteria(monkeypatch: pytest.MonkeyPatch) -> None:
    server = SearchServer(found(), found())
    assert search(server, monkeypatch, "--state", "failed", "--limit", "5") == 0
    words = "--state failed --state cancelled --key k --schedule s --workflow order-17 --error ValueError"
    times = "--created-after 2030-01-31T12:00:00Z --created-before 2030-01-31T13:00:00+01:00"
    assert search(server, monkeypatch, *words.split(), *times.split()) == 0
    assert server.requests == [
        {"state": ["failed"], "limit": 5},
        {
            "state": ["failed", "cancelled"],
            "key": "k",
            "schedule": "s",
            "workflow": "order-17",
            "error_type": "ValueError",
            "created_from": "2030-01-31T12:00:00Z",
            "created_to": "2030-01-31T12:00:00Z",
        },
    ]


@pytest.mark.parametrize(
    ("words", "method", "params"),
    [
        ("snooze H:n:1 --delay 2h", "jobs.snooze", {"handle": "H:n:1", "delay": 7200.0}),
        ("update H:n:1 --priority high", "jobs.update", {"handle": "H:n:1", "priority": "high"}),
        (
            "update H:n:1 --run-at 2030-01-31T13:00:00+01:00 --expires-at 2030-02-01T00:00:00Z",
            "jobs.update",
            {"handle": "H:n:1", "run_at": "2030-01-31T12:00:00Z", "expires_at": "2030-02-01T00:00:00Z"},
        ),
        ("update H:n:1 --expires-at none", "jobs.update", {"handle": "H:n:1", "expires_at": None}),
        ("delete H:n:1", "jobs.delete", {"handle": "H:n:1"}),
        ("retry H:n:1", "jobs.retry", {"handle": "H:n:1"}),
        (
            "retry H:n:1 --delay 5s --args [1]",
            "jobs.retry",
            {"handle": "H:n:1", "delay": 5.0, "payload": "WzFd"},
        ),
        ("clone H:n:1", "jobs.clone", {"handle": "H:n:1"}),
        (
            "clone H:n:1 --args -1 --unique u --priority low --delay 1m",
            "jobs.clone",
            {"handle": "H:n:1", "payload": "LTE=", "unique": "u", "priority": "low", "delay": 60.0},
        ),
        (
            "clone H:n:1 --run-at 2030-01-31T12:00:00Z --expires 1h --concurrency-key k --tag a --tag b",
            "jobs.clone",
            {
                "handle": "H:n:1",
                "run_at": "2030-01-31T12:00:00Z",
                "expires": 3600.0,
                "concurrency_key": "k",
                "tags": ("a", "b"),
            },
        ),
    ],
)
def test_a_change_is_one_call(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    method: str,
    params: dict[str, Any],
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def call(_: Client, name: str, given: dict[str, Any], _timeout: float | None = None) -> dict[str, Any]:
        calls.append((name, given))
        return {"handle": "H:n:2", "state": "pending"}

    monkeypatch.setattr(Client, "call", call)
    assert main(["jobs", *words.split()]) == 0
    assert calls == [(method, params)]
    assert "H:n:2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("update H:n:1", "nothing changes"),
        ("clone H:n:1 --run-at 2030-01-31T12:00:00Z --delay 1m", "exclude each other"),
    ],
)
def test_options_that_make_no_change_are_refused(capsys: pytest.CaptureFixture[str], words: str, problem: str) -> None:
    assert main(["jobs", *words.split()]) == EXIT_USAGE
    assert problem in capsys.readouterr().err


def test_the_details_of_a_job_are_grouped_without_empty_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("unique", "error", "schedule", "fire_time", "run_at", "ended_at", "max_attempts", "traceback", "run")
    job = {
        "handle": "H:n:1",
        "function": "f",
        "state": "running",
        "attempt": 1,
        "priority": "normal",
        **dict.fromkeys(names),
    }
    job |= {
        "created_at": "2030-01-31T12:00:00Z",
        "done": 0,
        "total": 10,
        "text": "half",
        "tags": [],
    }
    answers = {"jobs.show": {**job, "timeout": 90.0, "newer": "key"}, "jobs.attempts": {"attempts": []}}
    monkeypatch.setattr(Client, "call", lambda _, call, *__: answers[call])
    assert main(["jobs", "show", "H:n:1"]) == 0
    groups = [[line.split(":")[0] for line in group.splitlines()] for group in capsys.readouterr().out.split("\n\n")]
    assert groups == [
        ["handle", "function", "state"],
        ["attempt", "progress"],
        ["created_at", "timeout"],
        ["priority"],
        ["newer"],
    ]


def test_the_status_lists_a_workflow_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def function(name: str, total: int, waiting: int) -> dict[str, Any]:
        return {
            "function": name,
            "total": total,
            "running": 0,
            "workers": 1,
            "waiting": {"high": 0, "normal": waiting, "low": 0},
        }

    functions = [function("charge", 5, 0), function("order", 7, 0), function("order@1 (decisions)", 2, 2)]
    rows = [{"type": "order", "version": version, "workers": 1, "parked": 0, "stranded": 0} for version in ("1", "2")]
    answer = {"version": "1", "uptime": 1.0, "functions": functions, "workflows": rows}
    monkeypatch.setattr(Client, "call", lambda *_: answer)
    assert main(["status"]) == 0
    tables = capsys.readouterr().out.split("\n\n")
    assert [line.split("\t")[0] for line in tables[1].splitlines()] == ["functions", "function", "charge"]
    assert [line.split("\t") for line in tables[2].splitlines()[1:]] == [
        ["type", "version", "workers", "parked", "stranded", "runs", "decisions"],
        ["order", "1", "1", "0", "0", "-", "2"],
        ["order", "2", "1", "0", "0", "7", "0"],
    ]
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer
