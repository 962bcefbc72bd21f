from __future__ import annotations

import base64
import io
import json
import shlex
import sys
import time
from datetime import datetime
from typing import Any

import pytest

from mainspring.cli.main import main
from mainspring.cli.workflow_reading import RUN_COLUMNS
from mainspring.client.blocking import Client
from mainspring.client.outcomes import Outcome
from mainspring.errors import UsageError
from mainspring.jobs.model import failure
from mainspring.workflows import history
from mainspring.workflows.history_json import swf_event

from .terminal import shown

HANDLE = "H:laptop:3000000000017"
TIME = "2030-01-31T12:00:00.123456Z"
TIME_US = 1_896_091_200_123_456
RUN = {
    "handle": HANDLE,
    "id": "order-17",
    "type": "order",
    "version": "2",
    "status": "open",
    "started_at": TIME,
    "closed_at": None,
    "events": 11,
    "waits_for": "charge #2, timer 2d4h, approved",
    "run": f"{HANDLE}@3000000000017",
    "parked_at": None,
}
DETAILS = RUN | {
    "parked_at": TIME,
    "times_out_at": TIME,
    "cancel_requested": False,
    "input_size": 2048,
    "output_size": 0,
    "history_size": 300,
    "activities": [
        {"number": "2", "function": "charge", "handle": HANDLE, "state": "running", "worker": "w", "attempt": 3,
         "scheduled_at": TIME, "error": "OSError: away"}
    ],
    "parent": None,
    "children": [{"number": "4", "type": "part", "id": "part-1", "handle": HANDLE, "policy": "abandon"}],
    "timers": [{"number": "3", "fires_at": TIME, "duration": 60.0, "guards": "signal approved"}],
    "steps": [],
    "receives": ["approved", "shipped"],
    "unread": {"note": 2},
    "progress": {"done": 30, "total": 1000, "text": "resizing"},
    "parked": {"kind": "mismatch", "message": "the code differs", "recorded": ["a #1", "b #2"], "code": ["a #1", "c #2"],
               "at": 1, "builds": ["f00", "ba2"]},
}  # fmt: skip
REACHED = {"handle": HANDLE, "run": RUN["run"], "status": "open", "repeated": False}
EVENTS: list[history.Event] = [
    history.WorkflowExecutionStarted(1, TIME_US, "order", "2", b"[17]"),
    history.DecisionTaskScheduled(2, TIME_US),
    history.DecisionTaskStarted(3, TIME_US, 2, "w"),
    history.DecisionTaskCompleted(4, TIME_US, 2, 3),
    history.ActivityTaskScheduled(5, TIME_US, 4, "1", b"charge", input=b"[17,900]"),
    history.TimerStarted(6, TIME_US, 4, "2", 259_200),
    history.ActivityTaskStarted(7, TIME_US, 5, "w", 2),
    history.ActivityTaskCompleted(8, TIME_US, 5, 7, b"9" * 300),
    history.WorkflowExecutionSignaled(9, TIME_US, "approved", b'{"by": "\x1beva"}'),
    history.MarkerRecorded(10, TIME_US, 0, "step", b"900", native=True, number=1, function="price"),
    history.ActivityTaskFailed(11, TIME_US, 5, 7, "OSError", failure("OSError", "away")),
    history.WorkflowExecutionFailed(12, TIME_US, 4, "why", b"[1]"),
    history.StartChildWorkflowExecutionInitiated(13, TIME_US, 4, "part-1", "part", "1", b"[1]", run=77),
    history.ChildWorkflowExecutionCompleted(14, TIME_US, 13, 5, 77, "part-1", "part", "1", b"2"),
    history.SignalExternalWorkflowExecutionInitiated(15, TIME_US, 4, "", 99, "go"),
    history.WorkflowExecutionSignaled(16, TIME_US, "go", b"", 77, "order-17"),
]
WHAT = [
    "order@2 [17]",
    "-",
    "w",
    "-",
    "charge #1 [17,900]",
    "timer #2 3d",
    "charge #1 w attempt 2",
    f"charge #1 {'9' * 200}…",
    r'approved {"by": "\x1beva"}',
    "step price 900",
    "charge #1 OSError: away",
    "why [1]",
    "part@1 part-1 [1]",
    "part@1 part-1 2",
    "99 go",
    "from order-17 go",
]


class Server:
    """The answers of a server by call, and the calls that it gets."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, list[Any]] = {
            "workflows.list": [{"items": [RUN], "next": None, "searched_to": None}],
            "workflows.show": [DETAILS],
            "workflows.start": [{"handle": HANDLE, "run": RUN["run"], "id": "order-17", "joined": False}],
            "workflows.unpark": [{"number": 3}],
            "workflows.unpark_all": [{"number": 3}],
        }

    def call(self, method: str, params: dict[str, Any] | None = None, timeout: float | None = None) -> Any:
        del timeout
        self.calls.append((method, params or {}))
        answers = self.answers.get(method, [REACHED])
        return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(Client, "call", lambda _, *arguments: server.call(*arguments))
    return server


def page(*events: history.Event, following: int | None = None, status: str = "open") -> dict[str, Any]:
    return {"items": [swf_event(event, native=True) for event in events], "next": following, "status": status}


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("words", "params"),
    [
        ([], {}),
        (["--id", "order-17", "--version", "2"], {"id": "order-17", "version": "2"}),
        (["--args", "[17]", "--timeout", "3d"], {"payload": base64_of(b"[17]"), "timeout": 259_200.0}),
        (["[17]"], {"payload": base64_of(b"[17]")}),
        (["-5"], {"payload": base64_of(b"-5")}),
        (["--args", "-5", "--priority", "high"], {"payload": base64_of(b"-5"), "priority": "high"}),
    ],
)
def test_a_run_is_started(
    server: Server, capsys: pytest.CaptureFixture[str], words: list[str], params: dict[str, Any]
) -> None:
    assert main(["workflows", "start", "order", *words]) == 0
    assert server.calls == [("workflows.start", {"function": "order"} | params)]
    assert capsys.readouterr().out == f"{HANDLE}\torder-17\n"


def test_arguments_come_from_standard_input(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"number": 17}')))
    assert main(["workflows", "start", "order", "--args", "-"]) == 0
    assert server.calls[0][1]["payload"] == base64_of(b'{"number": 17}')


def test_a_result_is_that_of_a_handle_or_a_workflow_id(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def outcome(_: Client, handle: str, *_args: Any, **_more: Any) -> Outcome:
        asked.append(handle)
        return Outcome(handle, "succeeded", 0, None, b"1")

    monkeypatch.setattr(Client, "outcome", outcome)
    for words in (["workflows", "result"], ["jobs", "result"]):
        assert main([*words, "order-17"]) == 0
        assert main([*words, HANDLE]) == 0
        assert main([*words, f"{HANDLE}@17", "--json"]) == 0
    assert asked == [HANDLE] * 6
    assert server.calls == [("workflows.show", {"key": "order-17"})] * 2
    assert capsys.readouterr().out.startswith("11{")


def test_a_store_without_workflows_has_results_of_handles_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> Any:
        raise UsageError("no workflows")

    monkeypatch.setattr(Client, "call", refuse)
    assert main(["jobs", "result", "order-17"]) == 4
    assert "order-17 is no handle of a job" in capsys.readouterr().err


def test_a_start_waits_for_the_result(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "outcome", lambda *_, **__: Outcome(HANDLE, "succeeded", 0, None, b'{"paid": 1}'))
    assert main(["workflows", "start", "order", "--wait"]) == 0
    assert capsys.readouterr().out == '{"paid": 1}'
    assert main(["workflows", "start", "order", "--wait", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["result"], printed["handle"], printed["id"]) == ({"paid": 1}, HANDLE, "order-17")
    assert len(server.calls) == 2


def test_runs_are_listed(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--parked --type order --id order-17 --since 2030-01-31T12:00:00Z --limit 5 --cursor x"
    assert main(["workflows", "list", *words.split()]) == 0
    assert server.calls == [
        (
            "workflows.list",
            {
                "parked": True,
                "type": "order",
                "id": "order-17",
                "since": "2030-01-31T12:00:00Z",
                "limit": 5,
                "cursor": "x",
            },
        )
    ]
    head, line = capsys.readouterr().out.splitlines()
    assert tuple(head.split("\t")) == RUN_COLUMNS
    assert line.split("\t") == [HANDLE, "order-17", "order", "2", "open", TIME, "-", "11", RUN["waits_for"]]
    assert main(["workflows", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [RUN]


def test_a_stopped_search_for_runs_prints_its_position(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = "H:n:9@9"

    def answer(_: Client, _method: str, params: dict[str, Any], *_more: Any) -> Any:
        server.calls.append((_method, params))
        if params.get("cursor") == place:
            raise KeyboardInterrupt
        return {"items": [RUN], "next": place, "searched_to": TIME}

    monkeypatch.setattr(Client, "call", answer)
    with pytest.raises(SystemExit):
        main(["workflows", "list", "--json"])
    assert [params for _, params in server.calls] == [{}, {"limit": 99, "cursor": place}]
    out, err = capsys.readouterr()
    assert [one["run"] for one in json.loads(out)] == [RUN["run"]]
    assert f"searched back to runs of {TIME}; continue with --cursor {place}" in err


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_a_run_has_one_line_that_fits(server: Server, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(time, "time", lambda: datetime.fromisoformat(TIME).timestamp() + 200)
    head, line = (text.rstrip() for text in shown(lambda: main(["workflows", "list"]), width))
    assert max(len(head), len(line)) <= width
    assert "order-17" in line
    assert "open" in line.split()
    assert len(server.calls) == 1


def test_a_run_is_shown(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workflows", "show", "order-17"]) == 0
    printed = capsys.readouterr().out
    fields, activities, children, timers, sides = printed.split("\n\n")
    assert children.split()[-5:] == ["4", "part", "part-1", HANDLE, "abandon"]
    found: dict[str, str] = dict(line.split(maxsplit=1) for line in fields.splitlines())
    assert found["parked:"] == "mismatch: the code differs"
    assert (found["builds:"], found["receives:"], found["unread:"]) == ("f00, ba2", "approved, shipped", "note=2")
    assert found["progress:"] == "30 of 1,000: resizing"
    assert (found["input_size:"], found["history_size:"]) == ("2.0 KiB", "300 B")
    assert activities.splitlines()[-1].split("\t")[:5] == ["2", "charge", "running", "3", "w"]
    assert timers.splitlines()[-1] == f"3\t{TIME}\t60\tsignal approved"
    assert sides.splitlines()[1:] == ["\trecorded\tcode", "-\ta #1\ta #1", ">\tb #2\tc #2"]
    assert server.calls == [("workflows.show", {"key": "order-17"})]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_run_is_followed_until_it_is_closed(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    changes: list[dict[str, Any]] = [
        {"progress": None},
        {"progress": None, "waits_for": "timer 2d3h"},
        {"progress": {"done": 1, "total": 3, "text": ""}, "waits_for": "charge #2"},
        {"progress": {"done": 2, "total": 3, "text": "b"}, "events": 14, "waits_for": "charge #3"},
        {"progress": {"done": 3, "total": 3, "text": ""}, "events": 18, "status": "completed", "waits_for": None},
    ]
    server.answers["workflows.show"] = [DETAILS | change for change in changes]
    assert main(["workflows", "show", "order-17", "--follow", *(["--json"] if as_json else [])]) == 0
    lines = capsys.readouterr().out.splitlines()
    if as_json:
        assert [json.loads(line)["events"] for line in lines] == [11, 11, 14, 18]
    else:
        assert [line.split("\t") for line in lines] == [
            ["status", "events", "progress", "waits_for"],
            ["open", "11", "-", RUN["waits_for"]],
            ["open", "11", "1 of 3", "charge #2"],
            ["open", "14", "2 of 3: b", "charge #3"],
            ["completed", "18", "3 of 3", "-"],
        ]
    assert len(slept) == 4


def test_a_history_has_a_line_per_event(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["workflows.history"] = [page(*EVENTS[:6], following=7), page(*EVENTS[6:], status="open")]
    assert main(["workflows", "history", "order-17"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "id\ttime\tevent\twhat"
    assert [line.split("\t")[3] for line in lines] == WHAT
    assert lines[0].split("\t")[:3] == ["1", "2030-01-31T12:00:00.123Z", "WorkflowExecutionStarted"]
    first, second = server.calls
    assert (first[1], second[1]["from"]) == ({"key": "order-17", "limit": 1000, "native": True}, 7)


def test_the_json_of_a_history_is_that_of_swf(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["workflows.history"] = [page(*EVENTS)]
    assert main(["workflows", "history", "order-17", "--from", "3", "--json"]) == 0
    assert [event["eventId"] for event in json.loads(capsys.readouterr().out)] == list(range(1, 1 + len(EVENTS)))
    assert server.calls == [("workflows.history", {"key": "order-17", "from": 3, "limit": 1000})]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_history_is_followed_until_the_run_is_closed(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    end = history.WorkflowExecutionCompleted(7, TIME_US, 4, b"1")
    server.answers["workflows.history"] = [page(*EVENTS[:5]), page(), page(EVENTS[5], end, status="completed")]
    assert main(["workflows", "history", "order-17", "--follow", *(["--json"] if as_json else [])]) == 0
    lines = capsys.readouterr().out.splitlines()
    if as_json:
        assert [json.loads(line)["eventId"] for line in lines] == list(range(1, 8))
    else:
        assert [line.split("\t")[0] for line in lines] == ["id", *"1234567"]
    assert len(slept) == 2
    assert [params.get("from", 1) for _, params in server.calls] == [1, 6, 6]


def test_a_misspelt_signal_is_noted(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workflows", "signal", "order-17", "aproved"]) == 0
    assert capsys.readouterr().err == (
        "(order-17 waits for approved, shipped, and not for aproved: the signal waits until the code receives one of this name)\n"
    )
    assert [name for name, _ in server.calls] == ["workflows.show", "workflows.signal"]
    assert main(["workflows", "signal", "order-17", "approved"]) == 0
    server.answers["workflows.show"] = [{**DETAILS, "receives": []}]
    assert main(["workflows", "signal", "order-17", "anything"]) == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "call", "params", "out"),
    [
        (["signal", "a", "ok"], "signal", {"key": "a", "name": "ok"}, ""),
        (["signal", "a", "ok", "-5"], "signal", {"key": "a", "name": "ok", "payload": base64_of(b"-5")}, ""),
        (["cancel", "a", "--reason", "why"], "cancel", {"key": "a", "reason": "why"}, f"{HANDLE}\topen\n"),
        (["terminate", "a"], "terminate", {"key": "a"}, f"{HANDLE}\topen\n"),
        (
            ["terminate", "a", "--children", "abandon"],
            "terminate",
            {"key": "a", "children": "abandon"},
            f"{HANDLE}\topen\n",
        ),
        (["move", "a", "--version", "1"], "move", {"key": "a", "version": "1"}, f"{HANDLE}\topen\n"),
        (
            ["pause", "a", "--reason", "the bank is down", "--until", "2030-01-31T12:00:00Z"],
            "pause",
            {"key": "a", "reason": "the bank is down", "until": "2030-01-31T12:00:00Z"},
            f"{HANDLE}\topen\n",
        ),
        (["resume", "a"], "resume", {"key": "a"}, f"{HANDLE}\topen\n"),
        (["unpark", "a"], "unpark", {"key": "a"}, "3\n"),
        (["unpark", "--all"], "unpark_all", {}, "3\n"),
    ],
)  # fmt: skip
def test_requests_are_sent_to_a_run(
    server: Server, capsys: pytest.CaptureFixture[str], words: list[str], call: str, params: dict[str, Any], out: str
) -> None:
    server.answers["workflows.show"] = [{**DETAILS, "receives": ["ok"]}]
    assert main(["workflows", *words]) == 0
    assert [one for one in server.calls if one[0] != "workflows.show"] == [(f"workflows.{call}", params)]
    assert capsys.readouterr() == (out, "")
    assert main(["workflows", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) in (REACHED, {"number": 3})
    if call.startswith("unpark"):
        server.answers[f"workflows.{call}"] = [{"number": 0}]
        assert main(["workflows", *words]) == 0
        assert capsys.readouterr() == ("0\n", "mainspring: no run is parked: nothing was changed\n")


FORKED = {
    "source": f"{HANDLE}@3000000000017",
    "handle": HANDLE,
    "run": f"{HANDLE}@3000000000099",
    "event": 10,
    "kept": 8,
    "results": [f"part#{number}" for number in range(1, 23)],
    "repeated": ["charge#1"],
    "signals": 2,
    "dropped": 9,
    "dropped_signals": 1,
    "all_results": 122,
    "all_repeated": 1,
}
PLANNED = FORKED | {"handle": None, "run": None}
FORK_TEXT = (
    f"{HANDLE}@3000000000017: the decision of event 10 is made anew\n"
    f"keeps 8 events and drops 9; keeps the results of {', '.join(FORKED['results'][:1:-1])} and 102 more\n"  # type: ignore[index]
    "executes again, if the code calls it: charge#1\n"
    "repeats 2 later signals and drops 1\n"
)


def test_a_reset_shows_what_it_does_and_does_what_it_has_shown(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers["workflows.reset"] = [PLANNED, FORKED]
    assert main(["workflows", "reset", "order-17", "--last", "--reason", "why"]) == 0
    assert capsys.readouterr() == (f"{HANDLE}\t{FORKED['run']}\n", FORK_TEXT)
    asked, done = server.calls
    assert asked == ("workflows.reset", {"key": "order-17", "last": True, "reason": "why", "dry_run": True})
    assert done == ("workflows.reset", {"key": FORKED["source"], "event": 10, "reason": "why"})


def test_a_dry_run_of_a_reset_only_shows(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["workflows.reset"] = [PLANNED]
    assert main(["workflows", "reset", "a", "--before", "charge", "--drop-signals", "--dry-run"]) == 0
    assert capsys.readouterr() == (FORK_TEXT, "")
    params = {"key": "a", "before": "charge", "drop_signals": True, "dry_run": True}
    assert server.calls == [("workflows.reset", params)]
    assert main(["workflows", "reset", "a", "--first", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == PLANNED


def test_a_resume_of_a_run_that_is_not_paused_says_so(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["workflows.resume"] = [{**REACHED, "repeated": True}]
    assert main(["workflows", "resume", "a"]) == 0
    assert capsys.readouterr() == (f"{HANDLE}\topen\n", "mainspring: the run was not paused: nothing was changed\n")


def test_a_paused_run_is_shown_with_its_reason(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    paused = {"by": "ada", "until": None, "held": 2, "reason": "the bank is down"}
    server.answers["workflows.show"] = [{**DETAILS, "paused": paused}]
    assert main(["workflows", "show", "a"]) == 0
    shown = "by ada until it is resumed, holds 2 of its activities: the bank is down"
    assert shown in capsys.readouterr().out


RERUN = {**FORKED, "results": ["reserve#1"], "event": 0, "kept": 0, "dropped": 0, "given": ["notify"], "all_results": 1}
RERUN_TEXT = (
    f"{RERUN['source']}: runs again with its results\n"
    "takes over the results of reserve#1\n"
    "executes, if the code calls it: charge#1, and calls with other arguments\n"
    "gets a given result: notify\n"
    f"repeats {RERUN['signals']} signals and drops {RERUN['dropped_signals']}\n"
)


def test_a_rerun_shows_what_it_takes_over_and_does_it(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["workflows.rerun"] = [RERUN, RERUN]
    options = ["--from", "ship#2", "--repeat", "charge", "--skip", 'notify={"by": 1}', "--skip", "log=null"]
    assert main(["workflows", "rerun", "order-17", "--args", "[18]", *options]) == 0
    assert capsys.readouterr() == (f"{HANDLE}\t{RERUN['run']}\n", RERUN_TEXT)
    asked, done = server.calls
    choices = {"from_call": "ship#2", "repeat": ["charge"], "skip": {"notify": {"by": 1}, "log": None}}
    assert asked == ("workflows.rerun", {"payload": "WzE4XQ==", "key": "order-17", **choices, "dry_run": True})
    assert done == ("workflows.rerun", {"payload": "WzE4XQ==", "key": RERUN["source"], **choices})


@pytest.mark.parametrize("text", ["notify", "=1", "notify=no"])
def test_a_given_result_that_is_no_json_of_a_call_is_refused(
    server: Server, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert main(["workflows", "rerun", "a", "--skip", text]) == 2
    assert "JSON" in capsys.readouterr().err
    assert server.calls == []


def test_versions_are_listed_with_the_ones_that_nothing_needs(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"type": "order", "version": version, "open": number, "parked": 0, "workers": number, "last_seen_at": None}
        | {"gets_new_runs": version == "3", "needed": number > 0}
        for version, number in (("3", 4), ("2", 2), ("1", 0))
    ]
    server.answers["workflows.versions"] = [{"items": rows, "next": None}]
    assert main(["workflows", "versions"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["type", "version", "open", "parked", "workers", "last_seen_at", "note"]
    assert [(line[1], line[2], line[-1]) for line in lines[1:]] == [
        ("3", "4", "new runs"),
        ("2", "2", "-"),
        ("1", "0", "not needed"),
    ]
    assert main(["workflows", "versions", "order", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == rows
    server.answers["workflows.remove"] = [{"type": "order", "version": "1", "state": "removed"}]
    assert main(["workflows", "versions", "order", "--remove", "1"]) == 0
    assert capsys.readouterr().out == "order\t1\tremoved\n"
    assert server.calls == [
        ("workflows.versions", {}),
        ("workflows.versions", {"type": "order"}),
        ("workflows.remove", {"type": "order", "version": "1"}),
    ]


def test_workers_are_listed_with_the_runs_in_their_memory(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    cache = {"runs": 7, "bytes": 2**21, "limit": 2**28, "decisions": 90, "hits": 80, "replays": 3, "evictions": 1}
    workers = [
        {
            "worker": "w-1",
            "node": "n1",
            "versions": ["order@1", "order@2"],
            "decisions": 1,
            "draining": True,
            "cache": cache,
        },
        {"worker": "w-2", "versions": ["order@1"], "decisions": 0, "draining": False, "cache": None},
    ]
    server.answers["workflows.workers"] = [{"items": workers, "next": None}]
    assert main(["workflows", "workers"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["worker", "node", "versions", "state", "runs", "size", "limit", "hits", "replays", "evictions"],
        ["w-1", "n1", "order@1 order@2", "draining", "7", "2.0 MiB", "256.0 MiB", "80", "3", "1"],
        ["w-2", "-", "order@1", *["-"] * 7],
    ]
    assert main(["workflows", "workers", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == workers


@pytest.mark.parametrize("status", ["pending", "scheduled"])
def test_a_signal_to_a_run_that_has_not_begun_is_explained(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setitem(REACHED, "status", status)
    assert main(["workflows", "signal", "a", "ok"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"{HANDLE} is {status}: its run takes the signal when it begins." in printed.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("start order --args [17", "the input is not JSON"),
        ("signal order-17 approved yes", "the input is not JSON"),
        ("signal order-17 ''", "the signal has no name"),
        ("unpark", "give a run, or --all"),
        ("unpark order-17 --all", "give a run, or --all"),
        ("list --status asleep", "--status"),
        ("versions --remove 1", "--remove needs the name of the workflow"),
    ],
)
def test_wrong_usage_is_explained(server: Server, capsys: pytest.CaptureFixture[str], words: str, problem: str) -> None:
    assert main(["workflows", *shlex.split(words)]) == 2
    assert problem in capsys.readouterr().err
    assert server.calls == []


def test_the_events_of_a_chain_are_followed(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    first, second = f"{HANDLE}@1", f"{HANDLE}@2"
    signal = history.WorkflowExecutionSignaled(1, 0, "a")
    pages = [
        page(signal) | {"run": first, "next_run": None},
        page(status="continued_as_new") | {"run": first, "next_run": second},
        page(signal, status="completed") | {"run": second, "next_run": None},
    ]
    server.answers["workflows.history"] = [*pages]
    assert main(["workflows", "history", "order-17", "--follow", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    asked = [(params["key"], params.get("from", 1)) for _, params in server.calls]
    assert asked == [("order-17", 1), (first, 2), (second, 1)]
    server.calls.clear()
    server.answers["workflows.history"] = pages[:2]
    assert main(["workflows", "history", first, "--follow", "--json"]) == 0
    assert [params["key"] for _, params in server.calls] == [first, first]
