"""Calls of `mainspring schedules` and of Apps."""

from __future__ import annotations

import base64
import json
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.api.handlers.schedules import ScheduleCalls
from mainspring.schedules import triggers
from mainspring.schedules.service import ScheduleService
from mainspring.turns_of_loop import SLICE, LongWork
from mainspring.wire.gearman_protocol import Type, request

from .a_face import F, Node, Peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.schedules.model import Schedule

MINUTE = 60.0


@pytest.fixture
def schedules(node: Node) -> ScheduleService:
    return start(node)


def start(node: Node) -> ScheduleService:
    """Start the schedules of the only node of a store."""
    service = ScheduleService(node.life.commits, node.life.reads, node.clock, node.service.timers)
    node.life.api.add(ScheduleCalls(service, node.life.reads, node.service.handles, node.clock).handlers)
    return service


@pytest.fixture
def tool(node: Node, schedules: ScheduleService) -> Peer:
    del schedules
    return node.connect(extended=True)


def names(tool: Peer) -> list[str]:
    return [one["name"] for one in tool.call("schedules.list")["items"]]


def test_options_that_submit_refuses_are_refused(tool: Peer) -> None:
    assert tool.call("schedules.add", name="a", cron="@daily", unique="u" * 65) == "usage"
    assert tool.call("schedules.add", name="a", cron="@daily", function="") == "usage"
    assert names(tool) == []


def test_a_schedule_is_added_edited_paused_and_removed(tool: Peer) -> None:
    added = tool.call("schedules.add", name="a", function="f", cron="@daily", timezone="Europe/Berlin", timeout=5)
    assert added == {
        "name": "a",
        "function": "f",
        "when": "cron '@daily'",
        "timezone": "Europe/Berlin",
        "state": "active",
        "next_at": "2023-11-14T23:00:00.000000Z",
        "last_at": None,
        "waiting": 0,
        "origin": "cli",
        "app": None,
        "parents": [],
        "fault": None,
    }
    assert tool.call("schedules.list") == {"items": [added], "next": None, "searched_to": None}
    assert tool.call("schedules.pause", name="a")["state"] == "paused"
    assert tool.call("schedules.next", name="a") == {"schedule": "a", "paused": True, "times": [], "local": []}
    assert tool.call("schedules.resume", name="a")["state"] == "active"
    assert tool.call("schedules.edit", name="a", every=90, timeout=None)["when"] == "every 1m30s"
    shown = tool.call("schedules.show", name="a")
    assert (shown["every"], shown["cron"], shown["timeout"], shown["version"]) == (90.0, None, None, 4)
    assert tool.call("schedules.next", name="a", count=2)["times"] == [
        "2023-11-14T22:13:30.000000Z",
        "2023-11-14T22:15:00.000000Z",
    ]
    assert tool.call("schedules.remove", name="a") == {"name": "a", "state": "removed"}
    assert names(tool) == []


def test_all_fields_of_a_schedule_are_shown(tool: Peer) -> None:
    fields: dict[str, Any] = {
        "payload": base64.b64encode(b"\x00").decode(),
        "start": "2027-01-15T08:00:00Z",
        "end": "2030-03-17T17:46:40Z",
        "jitter": 2.5,
        "exclude": ["2030-12-24"],
        "misfire": 3,
        "misfire_after": 2.0,
        "overlap": "queue",
        "wait_for_children": True,
        "priority": "high",
        "retry": {"max_attempts": 3},
        "unique": "u",
        "expires": 60.0,
    }
    tool.call("schedules.add", name="a", every=MINUTE, **fields)
    shown = tool.call("schedules.show", name="a")
    assert {key: shown[key] for key in fields if key not in {"start", "end", "retry"}} == {
        key: value for key, value in fields.items() if key not in {"start", "end", "retry"}
    }
    assert shown["retry"]["max_attempts"] == 3
    assert (shown["start"], shown["end"]) == ("2027-01-15T08:00:00.000000Z", "2030-03-17T17:46:40.000000Z")
    assert tool.call("schedules.add", name="b", at="2027-01-15T08:00:00Z")["when"] == "at 2027-01-15T08:00:00+00:00"
    assert tool.call("schedules.show", name="b")["at"] == "2027-01-15T08:00:00.000000Z"


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("add", {"name": "a"}, "usage"),
        ("add", {"name": "a", "cron": "never"}, "usage"),
        ("add", {"name": "a", "cron": "@daily", "more": 1}, "usage"),
        ("add", {"name": "there", "cron": "@daily"}, "conflict"),
        ("add", {"name": "a", "parents": ["b"]}, "usage"),
        ("edit", {"name": "there", "overlap": "x"}, "usage"),
        ("edit", {"name": "there", "parents": ["there"]}, "usage"),
        ("edit", {"name": "b"}, "not_found"),
        ("show", {"name": "b"}, "not_found"),
        ("pause", {"name": "b"}, "not_found"),
        ("resume", {"name": "b"}, "not_found"),
        ("remove", {"name": "b"}, "not_found"),
        ("trigger", {"name": "b"}, "not_found"),
        ("next", {"name": "b"}, "not_found"),
        ("next", {"name": "there", "count": 0}, "usage"),
        ("history", {"name": "b"}, "not_found"),
        ("history", {"name": "there", "limit": 1001}, "usage"),
        ("declare", {"app": "x", "schedules": [{"name": "a"}]}, "usage"),
    ],
)
def test_invalid_calls_have_faults(tool: Peer, method: str, params: dict[str, Any], code: str) -> None:
    tool.call("schedules.add", name="there", every=MINUTE)
    assert tool.call(f"schedules.{method}", **params) == code
    assert names(tool) == ["there"]


@pytest.mark.parametrize("method", ["list", "show", "add", "edit", "pause", "remove", "trigger", "history", "declare"])
def test_a_failed_store_is_unavailable(node: Node, tool: Peer, method: str) -> None:
    params = {
        "list": b"{}",
        "add": b'{"name": "a", "every": 60}',
        "declare": b'{"app": "x", "schedules": []}',
    }.get(method, b'{"name": "a"}')
    tool.request(1004, b"1", f"schedules.{method}".encode(), params)
    node.fail()
    ((name, args),) = tool.received()
    assert (name, args[1]) == ("FAULT", "unavailable")


def test_a_triggered_run_is_in_the_history(node: Node, tool: Peer) -> None:
    tool.call("schedules.add", name="a", function="f", every=MINUTE)
    assert tool.call("schedules.history", name="a") == {"items": [], "next": None, "searched_to": None}
    run = tool.call("schedules.trigger", name="a")
    assert run["fire_time"] == "2023-11-14T22:13:20.000000Z"
    shown = tool.call("jobs.show", handle=run["handle"])
    assert (shown["schedule"], shown["fire_time"]) == ("a", run["fire_time"])
    node.history.live.add(node.service.handles.parse(run["handle"].encode()) or 0)
    worker = node.stream(F)
    node.commit()
    ((_, args),) = [packet for packet in worker.received() if packet[0] == "ASSIGN"]
    assert args[0] == run["handle"]
    assert '"fire_time":1700000000.0' in args[4]
    worker.request(1013, args[0].encode(), args[1].encode(), b"failed", b'{"error":{"type":"E","message":"m"}}', b"")
    node.commit()
    (row,) = tool.call("schedules.history", name="a")["items"]
    assert row == run | {
        "node": "n",
        "worker": row["worker"],
        "started_at": row["started_at"],
        "ended_at": row["ended_at"],
        "outcome": "failed",
        "error": "E: m",
        "attempt": 1,
        "finished": True,
    }
    assert row["worker"]
    assert row["started_at"] <= row["ended_at"]


def test_schedules_are_declared_by_code(tool: Peer) -> None:
    a, b = {"name": "a", "every": MINUTE}, {"name": "b", "parents": ["a"]}
    declared = tool.call("schedules.declare", app="x", schedules=[b, a])
    assert declared["governs"]
    assert [(one["kind"], one["name"]) for one in declared["changes"]] == [("added", "a"), ("added", "b")]
    assert tool.call("schedules.declare", app="x", schedules=[a, b])["changes"] == []
    assert tool.call("schedules.show", name="a")["app"] == "x"
    (changed,) = tool.call("schedules.declare", app="x", schedules=[a | {"every": 30}, b])["changes"]
    assert changed == {"kind": "changed", "name": "a", "text": "changed a: every 1m → every 30s", "warning": False}
    (removed,) = tool.call("schedules.declare", app="x", schedules=[a | {"every": 30}])["changes"]
    assert (removed["kind"], removed["name"]) == ("removed", "b")
    assert names(tool) == ["a"]
    # The declaration of another App leaves it unchanged and reports that.
    (left,) = tool.call("schedules.declare", app="y", schedules=[a])["changes"]
    assert left["kind"] == "left alone"


def test_the_newer_of_two_versions_of_code_governs(node: Node, schedules: ScheduleService, tool: Peer) -> None:
    old, new = [{"name": "a", "every": 60}], [{"name": "a", "every": 30}]
    assert tool.call("schedules.declare", app="x", schedules=old)["governs"]
    node.wait(1)
    assert tool.call("schedules.declare", app="x", schedules=new)["governs"]
    for _ in range(5):
        node.wait(20)
        assert tool.call("schedules.declare", app="x", schedules=old) == {"governs": False, "changes": []}
        assert tool.call("schedules.declare", app="x", schedules=new) == {"governs": True, "changes": []}
    assert tool.call("schedules.show", name="a")["every"] == 30
    # The new version was rolled back: after a while the old one governs.
    node.wait(100)
    assert tool.call("schedules.declare", app="x", schedules=old)["governs"]
    assert tool.call("schedules.show", name="a")["every"] == 60
    # The only node of a store, after a restart: no other version can be running.
    assert tool.call("schedules.declare", app="x", schedules=new)["governs"]
    node.wait(1)
    start(node)
    assert tool.call("schedules.declare", app="x", schedules=old)["governs"]


@pytest.mark.parametrize(("method", "params"), [("schedules.list", b"{}"), ("schedules.history", b'{"name": "a"}')])
def test_the_query_for_a_disconnected_client_ends(
    node: Node, tool: Peer, monkeypatch: pytest.MonkeyPatch, method: str, params: bytes
) -> None:
    asked = list[object]()
    monkeypatch.setattr(node.life.store, "read", lambda query, *_: asked.append(query))
    tool.request(Type.CALL, b"7", method.encode(), params)
    tool.leave()
    node.commit()
    assert asked == []


def test_the_search_for_times_ends_with_its_client(
    node: Node, schedules: ScheduleService, tool: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool.call("schedules.add", name="a", every=MINUTE)
    turns: list[Callable[[], None]] = []
    ticks = count(0.0, SLICE)
    schedules.run_sliced = LongWork(turns.append, lambda: next(ticks)).start
    tool.request(Type.CALL, b"7", b"schedules.next", b'{"name": "a", "count": 1000}')
    node.commit()
    assert turns
    tool.leave()
    turns.pop(0)()
    assert turns == []


def counted_turns(
    node: Node, service: ScheduleService, tool: Peer, monkeypatch: pytest.MonkeyPatch, method: str, **params: Any
) -> tuple[Any, int, int]:
    """Call a method with slices of one step, and return its value.

    Also return the largest number of fire times that it computed in one turn of the loop, and in the store's transactions.
    """
    turns: list[Callable[[], None]] = []
    ticks = count(0.0, SLICE)
    service.run_sliced = LongWork(turns.append, lambda: next(ticks)).start
    computed, next_after = 0, triggers.next_after

    def counting(schedule: Schedule, after_us: int) -> int | None:
        nonlocal computed
        computed += 1
        return next_after(schedule, after_us)

    monkeypatch.setattr(triggers, "next_after", counting)
    tool.send(request(Type.CALL, b"7", method.encode(), json.dumps(params).encode()))
    most, inside = computed, 0
    while True:
        computed = 0
        node.commit()
        inside += computed
        if not turns:
            ((name, args),) = tool.received()
            return json.loads(args[1]) if name == "ANSWER" else args[1], most, inside
        computed = 0
        turns.pop(0)()
        most = max(most, computed)


def test_many_declared_schedules_are_processed_in_slices(
    node: Node, schedules: ScheduleService, tool: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn of the loop processes one schedule, and the transaction of the store computes no fire time."""
    later = "2030-03-17T17:46:40Z"  # so that none fires during the test
    many = [{"name": f"s{number:02}", "every": MINUTE + number, "start": later} for number in range(50)]
    added, most, inside = counted_turns(
        node, schedules, tool, monkeypatch, "schedules.declare", app="x", schedules=many
    )
    assert len(added["changes"]) == 50
    assert most <= 3
    assert inside == 0
    changed = [one | {"every": 2 * MINUTE} for one in many]
    answer, most, inside = counted_turns(
        node, schedules, tool, monkeypatch, "schedules.declare", app="x", schedules=changed
    )
    assert {one["kind"] for one in answer["changes"]} == {"changed"}
    assert most <= 3
    assert inside == 0


def test_an_invalid_schedule_among_many_is_reported_and_none_is_stored(
    node: Node, schedules: ScheduleService, tool: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [{"name": f"s{number}", "every": MINUTE} for number in range(20)] + [{"name": "wrong", "every": 0.01}]
    fault, *_ = counted_turns(node, schedules, tool, monkeypatch, "schedules.declare", app="x", schedules=many)
    assert fault == "usage"
    assert names(tool) == []


def test_distant_fire_times_are_computed_in_slices(
    node: Node, schedules: ScheduleService, tool: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = [f"2023-11-{day}" for day in range(15, 30)]
    tool.call("schedules.add", name="a", cron="0 12 * * *", exclude=days)
    answer, most, _ = counted_turns(node, schedules, tool, monkeypatch, "schedules.next", name="a", count=100)
    assert (len(answer["times"]), answer["times"][0]) == (100, "2023-11-30T12:00:00.000000Z")
    assert most <= 2
