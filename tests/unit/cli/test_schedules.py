from __future__ import annotations

import base64
import io
import json
import re
import sys
import time
from datetime import datetime
from typing import Any

import pytest

from mainspring.cli.main import main
from mainspring.client.blocking import Client

from .terminal import shown

SCHEDULE = {"name": "a", "state": "active", "next_at": "2030-01-31T12:00:00.000000Z"}
TIMING = {
    "every": 5400.0,
    "jitter": 0.5,
    "timeout": 120.0,
    "expires": None,
    "retry": {"max_attempts": 5, "initial": 0.25, "maximum": 3600.0},
}
RUN = {"fire_time": "2030-01-31T12:00:00.000000Z", "state": "skipped", "reason": "overlap", "handle": None}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The calls to the server."""
    calls: list[tuple[str, dict[str, Any]]] = []
    answers: dict[str, Any] = {
        "schedules.list": {"items": [SCHEDULE], "next": None},
        "schedules.show": SCHEDULE
        | TIMING
        | {"payload": "AHg=", "exclude": ["2030-12-24", "2030-12-25"], "parents": []},
        "schedules.next": {
            "times": ["2030-01-31T12:00:00.000000Z", "2030-02-01T12:00:00.000000Z"],
            "local": [
                {"local": "2030-01-31T13:00:00+01:00", "note": None},
                {"local": "2030-02-01T13:00:00+01:00", "note": "skipped"},
            ],
        },
        "schedules.history": {"items": [RUN], "next": "more", "searched_to": None},
        "schedules.trigger": RUN,
        "functions.registered": {"registered": False, "shared": False, "functions": ["g"]},
    }

    def call(_: Client, method: str, params: dict[str, Any] | None = None, timeout: float | None = None) -> Any:
        del timeout
        calls.append((method, params or {}))
        return answers.get(method, SCHEDULE)

    monkeypatch.setattr(Client, "call", call)
    return calls


def test_all_options_become_fields(calls: list[tuple[str, dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    options = (
        "--cron '30 2 * * *' --timezone Europe/Berlin --start 2030-01-01T00:00:00Z --end none --exclude 2030-12-24 "
        "--exclude 2030-12-25 --jitter 1m --misfire 3 --overlap queue --wait-for-children --function f --args {} "
        "--priority high --max-attempts 3 --run-timeout 2h --unique u --expires none"
    )
    words = [word.strip("'") for word in options.replace("30 2 * * *", "30_2_*_*_*").split()]
    assert main(["schedules", "add", "a", *(word.replace("_", " ") for word in words)]) == 0
    assert calls == [
        (
            "schedules.add",
            {
                "name": "a",
                "cron": "30 2 * * *",
                "timezone": "Europe/Berlin",
                "exclude": ["2030-12-24", "2030-12-25"],
                "jitter": 60.0,
                "misfire": 3,
                "overlap": "queue",
                "wait_for_children": True,
                "function": "f",
                "payload": base64.b64encode(b"{}").decode(),
                "priority": "high",
                "retry": {"max_attempts": 3},
                "unique": "u",
                "start": "2030-01-01T00:00:00Z",
                "end": None,
                "timeout": 7200.0,
                "expires": None,
            },
        ),
        ("functions.registered", {"function": "f"}),
    ]
    printed = capsys.readouterr()
    assert printed.out == "a\tactive\t2030-01-31T12:00:00.000000Z\n"
    assert printed.err == "mainspring: no worker has registered f; its jobs will wait\n"


@pytest.mark.parametrize(
    ("words", "params"),
    [
        ("--every 10s", {"every": 10.0}),
        ("--at 2030-01-01T00:00:00Z", {"at": "2030-01-01T00:00:00Z"}),
        ("--parent b --parent c", {"parents": ["b", "c"]}),
        ("--no-wait-for-children --misfire skip", {"wait_for_children": False, "misfire": "skip"}),
        ("--attempts 3 --timeout 2h", {"retry": {"max_attempts": 3}, "timeout": 7200.0}),
        ("--args -5", {"payload": base64.b64encode(b"-5").decode()}),
    ],
)
def test_given_options_are_sent(calls: list[tuple[str, dict[str, Any]]], words: str, params: dict[str, Any]) -> None:
    assert main(["schedules", "edit", "a", *words.split()]) == 0
    assert calls == [("schedules.edit", {"name": "a"} | params)]


def test_an_edited_function_without_a_worker_is_named(
    calls: list[tuple[str, dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schedules", "edit", "a", "--function", "gg"]) == 0
    assert [method for method, _ in calls] == ["schedules.edit", "functions.registered"]
    assert "no worker has registered gg; its jobs will wait; did you mean 'g'?" in capsys.readouterr().err


def test_a_payload_from_standard_input(
    calls: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\x00\xff")))
    assert main(["schedules", "edit", "a", "--args", "-"]) == 0
    assert calls[0][1]["payload"] == base64.b64encode(b"\x00\xff").decode()


def test_durations_are_shown_in_the_form_of_options(
    calls: list[tuple[str, dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schedules", "show", "a"]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert {name.rstrip(":"): text for name, text in shown.items() if name.rstrip(":") in TIMING} == {
        "every": "1h30m",
        "jitter": "500ms",
        "timeout": "2m",
        "expires": "-",
        "retry": "max_attempts=5 initial=250ms maximum=1h",
    }
    assert main(["schedules", "show", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).items() >= TIMING.items()


@pytest.mark.parametrize(
    "words",
    [
        "edit a",
        "remove",
        "add a --every soon",
        "add a --misfire never",
        "add a --misfire -1",
        "add a --overlap sometimes",
        "add a --start soon",
        "add",
        "history a --limit soon",
    ],
)
def test_wrong_usage(calls: list[tuple[str, dict[str, Any]]], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedules", *words.split()]) == 2
    assert calls == []
    assert capsys.readouterr().err.count("\n") == 1


def test_the_list_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"next_at": "2030-01-31T12:00:00.000000Z", "last_at": "2030-01-31T10:00:00.000000Z"}
    kept = {
        "timezone": "Europe/Berlin",
        "state": "active",
        "waiting": 0,
        "function": "generate_thumbnails",
        "app": "shop",
    }
    listed = [
        {"name": "nightly", "when": "cron '30 2 * * *'"} | times | kept,
        {"name": "a-name-that-people-copy", "when": "after nightly and poll"} | times | kept,
    ]
    monkeypatch.setattr(Client, "call", lambda *_: {"items": listed, "next": None})
    monkeypatch.setattr(time, "time", lambda: datetime.fromisoformat(times["last_at"]).timestamp() + 60)
    lines = [line.rstrip() for line in shown(lambda: main(["schedules", "list"]), 80)]
    assert max(map(len, lines)) <= 80
    assert [re.split("  +", line) for line in lines] == [
        ["NAME", "WHEN", "TIMEZONE", "STATE", "NEXT"],
        ["nightly", "cron '30 2 * * *'", "Europe/Berlin", "active", "in 1h"],
        ["a-name-that-people-copy", "after nightly and poll", "Europe/Berlin", "active", "in 1h"],
    ]


@pytest.mark.parametrize("command", ["pause", "resume", "remove"])
def test_commands_on_a_name(
    calls: list[tuple[str, dict[str, Any]]], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schedules", command, "a", "--json"]) == 0
    assert calls == [(f"schedules.{command}", {"name": "a"})]
    assert '"state":"active"' in capsys.readouterr().out


def test_schedules_are_removed_with_their_children(
    calls: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["schedules", "remove", "a", "--children"]) == 0
    assert calls == [("schedules.remove", {"name": "a", "children": True})]
    listed = [{"name": name, "parents": parents} for name, parents in (("a", []), ("b", ["a"]), ("c", ["b", "x"]))]
    calls.clear()

    def call(_: Client, method: str, params: dict[str, Any], *_more: object) -> dict[str, Any]:
        calls.append((method, params))
        return {"items": listed, "next": None} | SCHEDULE

    monkeypatch.setattr(Client, "call", call)
    assert main(["schedules", "remove", "a", "b", "c", "d"]) == 0
    assert [params.get("name") for _, params in calls] == [None, "c", "d", "b", "a"]


def test_a_schedule_is_given_to_an_app(calls: list[tuple[str, dict[str, Any]]]) -> None:
    assert main(["schedules", "adopt", "a", "b", "--app", "shop"]) == 0
    assert calls == [("schedules.adopt", {"name": name, "app": "shop"}) for name in "ab"]
    assert main(["schedules", "adopt", "a"]) == 2


def test_answers_are_printed(calls: list[tuple[str, dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    for words, expected in (
        ("list", "name\twhen"),
        ("list --json", '[{"name":"a"'),
        ("show a", "exclude: 2030-12-24 2030-12-25"),
        ("show a --json", '"payload":"AHg="'),
        ("next a", "2030-01-31T13:00:00+01:00\n2030-02-01T13:00:00+01:00\tthe clock skips"),
        ("next a --json", '["2030-01-31T12:00:00.000000Z"'),
        ("history a --limit 1 --cursor x", "skipped\t-\toverlap"),
        ("history a --json", '[{"fire_time"'),
        ("trigger a", "skipped\toverlap\n"),
        ("trigger a --json", '{"fire_time"'),
    ):
        assert main(["schedules", *words.split()]) == 0
        assert expected in capsys.readouterr().out, words
    assert ("schedules.history", {"name": "a", "limit": 1, "cursor": "x"}) in calls
