"""Calls of tools over the Gearman port."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from mainspring.access.caller import Permission
from mainspring.api.handlers.nodes import StatusCalls
from mainspring.api.nodes import CommitNumbers, FunctionStatus, JobNumbers, NodeStatus, WaitingJobs
from mainspring.api.request import Request
from mainspring.callbacks import Callback
from mainspring.faces.gearman.calls import DEFECT, WATCHER_BACKLOG
from mainspring.jobs.user_data import KEPT_ARGUMENTS
from mainspring.resources.definition_store import ListResources, effective
from mainspring.resources.holds import counted, named
from mainspring.storage.engine import Budget
from mainspring.wire.gearman_protocol import Type

from .a_face import F, G, Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.api.handlers.registry import Call

UNKNOWN_HANDLE = "H:n:1000000999999"


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("jobs.fly", b"", "usage"),
        ("jobs.show", b"", "usage"),
        ("jobs.show", b"{", "usage"),
        ("jobs.show", b'{"handle": 1}', "usage"),
        ("jobs.show", b'{"handle": "x", "more": 1}', "usage"),
        ("jobs.show", b'{"handle": "x"}', "not_found"),
        ("jobs.cancel", b'{"handle": "x"}', "not_found"),
        ("jobs.retry", b'{"handle": "x"}', "not_found"),
        ("jobs.watch", b'{"handle": "x"}', "not_found"),
        ("jobs.list", b'{"cursor": "x"}', "usage"),
        ("jobs.list", b'{"state": "asleep"}', "usage"),
        ("jobs.list", b'{"limit": 0}', "usage"),
        ("requests.depth", b'{"depth": 9}', "usage"),
        ("requests.depth", b'{"depth": -1}', "usage"),
        ("worker.slots", b"", "usage"),
        ("worker.slots", b'{"slots": 0}', "usage"),
        ("worker.slots", b'{"slots": 1000001}', "usage"),
        ("jobs.list", b'{"limit": 1001}', "usage"),
    ],
)
def test_invalid_calls_have_faults(node: Node, method: str, params: bytes, code: str) -> None:
    name, args = node.connect(extended=True).ask(Type.CALL, b"my id", method.encode(), params)
    assert (name, args[:2]) == ("FAULT", ["my id", code])
    assert args[2]


@pytest.mark.parametrize("method", ["jobs.show", "jobs.cancel", "jobs.retry"])
def test_unknown_jobs(node: Node, method: str) -> None:
    assert node.connect(extended=True).call(method, handle=UNKNOWN_HANDLE) == "not_found"


def test_a_worker_declares_its_slots(node: Node) -> None:
    stream = node.stream(places=20)
    assert stream.call("worker.slots", slots=4) == {}
    (worker,) = node.service.dispatch.workers
    assert (worker.slots, worker.credit) == (4, 20)


def test_a_worker_declares_which_arguments_its_functions_keep(node: Node) -> None:
    worker = node.stream(F)
    assert worker.call("worker.keeps", arguments={"f": 7, "other": 9}) == {}
    rules = node.service.arguments.of
    assert (rules(F).limit, rules(b"other").limit) == (7, KEPT_ARGUMENTS), "it has not registered the other one"
    assert worker.call("worker.keeps", arguments={"f": 2**20 + 1}) == "usage"
    assert worker.call("worker.keeps", arguments={}) == {}
    assert rules(F).limit == KEPT_ARGUMENTS


def test_a_worker_declares_how_long_its_functions_keep_results(node: Node) -> None:
    worker, kept_for = node.stream(F), node.service.results.seconds_of
    assert worker.call("worker.results", results={"f": 60, "other": 9}) == {}
    assert kept_for(F) == 60
    assert kept_for(b"other") is None, "it has not registered that one"
    assert node.service.arguments.kept_whole == -1, "each success is noted"
    assert worker.call("worker.results", results={"f": 0.5}) == "usage"
    assert worker.call("worker.keeps", arguments={}) == {}
    assert kept_for(F) is None


def test_a_worker_declares_by_when_jobs_of_its_functions_should_begin_and_end(node: Node) -> None:
    worker, tool = node.stream(F), node.connect(extended=True)

    def times(function: bytes = F, **options: float) -> tuple[bool, bool]:
        name, args = tool.ask(Type.SUBMIT, function, b"", json.dumps(options).encode(), b"")
        assert name == "SUBMITTED"
        shown = tool.call("jobs.show", handle=args[0])
        return shown["start_by"] is not None, shown["deadline_at"] is not None

    declared = {"f": {"deadline": 60}, "other": {"deadline": 9}}
    assert worker.call("worker.times", times=declared) == {}
    assert times() == (False, True)
    assert times(start_within=5) == (True, True)
    assert times(b"other") == (False, False), "it has not registered that one"
    for wrong in ({"deadline": 0}, {"deadline": 1e11}, {"timeout": 5}):
        assert tool.call("worker.times", times={"f": wrong}) == "usage"
    worker.leave()
    assert times() == (False, True), "nobody runs it"
    newer = node.connect(extended=True)
    newer.request(Type.REGISTER, F, b"")
    assert newer.call("worker.times", times={}) == {}
    assert times() == (False, False), "the new code has no times"


def test_a_worker_declares_the_resources_that_its_workflows_may_hold(node: Node) -> None:
    worker = node.connect(extended=True)
    assert worker.call("worker.resources", resources={"l": {"total": 2}, "p": {"items": {"p1": ["colour"]}}}) == {}
    node.commit()
    definitions = Budget(100, 100_000)
    found: list[Any] = []
    node.life.store.read(ListResources(), definitions, found.append)
    declared = {one.name: effective(one, 0) for one in found[0].items}
    assert declared == {"l": counted(2), "p": named({"p1": {"colour"}})}
    refused: list[Any] = [
        {"l": {}},
        {"l": {"total": -1}},
        {"": {"total": 1}},
        {"l": {"total": 1, "items": {"x": []}}},
        5,
    ]
    for wrong in refused:
        assert worker.call("worker.resources", resources=wrong) == "usage"


def test_a_worker_reports_that_it_prepares_the_executor_of_a_job(node: Node) -> None:
    worker, tool = node.stream(F, timeout=2), node.connect(extended=True)
    job = tool.background()
    ((handle, token),) = [(args[0], args[1]) for name, args in worker.received() if name == "ASSIGN"]
    other = node.stream()
    assert other.call("worker.prepares", deliveries=[(handle, token)], ready=False) == {}, "it is not its job"
    assert worker.call("worker.prepares", deliveries=[(handle, token), (handle, "wrong")], ready=False) == {}
    node.wait(3)
    assert tool.call("jobs.show", handle=job)["state"] == "running"
    assert worker.call("worker.prepares", deliveries=[(handle, "wrong")], ready=True) == {}
    node.wait(3)
    assert tool.call("jobs.show", handle=job)["state"] == "running"
    assert worker.call("worker.prepares", deliveries=[(handle, token)], ready=True) == {}
    node.wait(3)
    assert tool.call("jobs.show", handle=job)["state"] == "failed"


def test_a_worker_declares_that_it_isolates_jobs(node: Node) -> None:
    assert node.stream().call("worker.isolates") == {}
    (worker,) = node.service.dispatch.workers
    assert worker.isolates


def test_a_failed_store_is_unavailable(node: Node) -> None:
    tool = node.connect(extended=True)
    handle = tool.background()
    for method, params in (
        ("jobs.show", {"handle": handle}),
        ("jobs.cancel", {"handle": handle}),
        ("jobs.retry", {"handle": handle}),
        ("jobs.list", {}),
    ):
        node.life.store.away = True  # lookups begin at once
        tool.request(Type.CALL, b"1", method.encode(), json.dumps(params).encode())
        node.fail()
        ((name, args),) = tool.received()
        assert (name, args[1]) == ("FAULT", "unavailable")


def test_a_job_is_shown_with_its_progress(node: Node) -> None:
    tool, worker = node.connect(extended=True), node.worker()
    handle = tool.background(b"load", unique=b"u")
    shown = tool.call("jobs.show", handle=handle)
    assert {name: shown[name] for name in ("handle", "function", "unique", "state", "attempt", "worker")} == {
        "handle": handle,
        "function": "f",
        "unique": "u",
        "state": "leased",
        "attempt": 0,
        "worker": None,
    }
    assert shown["created_at"] == "2023-11-14T22:13:20.000000Z"
    assert shown["started_at"] is None
    worker.request(Type.SET_CLIENT_ID, b"me")
    worker.ask(Type.GRAB_JOB)
    worker.request(Type.WORK_STATUS, handle.encode(), b"1", b"many")
    shown = tool.call("jobs.show", handle=handle)
    assert (shown["state"], shown["worker"], shown["done"], shown["total"]) == ("running", "me", 1, 0)
    assert (shown["done"], shown["total"]) == (1, 0)
    worker.request(Type.WORK_COMPLETE, handle.encode(), b"done")
    node.commit()
    shown = tool.call("jobs.show", handle=handle)
    assert (shown["state"], shown["input_size"], shown["output_size"]) == ("succeeded", 4, 4)


def test_texts_of_progress_are_shown_and_sent_to_peers_that_ask(node: Node) -> None:
    tool, other, worker = node.connect(extended=True), node.connect(extended=True), node.connect(extended=True)
    handle = tool.background()
    assert tool.call("progress.texts") == {}
    for peer in (tool, other):
        peer.request(Type.WAIT, handle.encode())
    worker.request(Type.REGISTER, b"f", b"")
    worker.request(Type.READY, b"1")
    node.commit()
    worker.received()
    worker.request(Type.PROGRESS_TEXT, handle.encode(), b"h\xe4lf")
    worker.request(Type.WORK_STATUS, handle.encode(), b"1", b"2")
    assert tool.received() == [("PROGRESS_TEXT", [handle, "h\ufffdlf"]), ("WORK_STATUS", [handle, "1", "2"])]
    assert other.received() == [("WORK_STATUS", [handle, "1", "2"])]
    assert tool.call("jobs.show", handle=handle)["text"] == "h\ufffdlf"
    worker.request(Type.PROGRESS_TEXT, handle.encode(), b"")
    worker.request(Type.WORK_STATUS, handle.encode(), b"2", b"2")
    assert tool.received() == [("WORK_STATUS", [handle, "2", "2"])]
    assert tool.call("jobs.show", handle=handle)["text"] is None
    assert worker.ask(Type.PROGRESS_TEXT, handle.encode(), b"x" * 1025)[1][0] == "ARGUMENT_TOO_LARGE"


def test_jobs_are_listed_newest_first_and_page_by_page(node: Node) -> None:
    tool = node.connect(extended=True)
    handles = [tool.background() for _ in range(5)][::-1]

    def listed(**params: Any) -> list[str]:
        return [job["handle"] for job in tool.call("jobs.list", **params)["items"]]

    assert listed() == handles
    assert listed(limit=2) == handles[:2]
    assert listed(limit=2, cursor=tool.call("jobs.list", limit=2)["next"]) == handles[2:4]
    assert listed(function="g") == []
    assert listed(unique="u") == []
    assert listed(state="pending") == handles
    assert listed(state="running") == []


def test_a_short_page_has_a_cursor_and_the_time_searched(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = node.connect(extended=True)
    _, (rare,) = tool.ask(Type.SUBMIT_JOB_BG, G, b"", b"")
    handles = [tool.background() for _ in range(5)]
    monkeypatch.setattr(node.life.reads, "_budget", Budget(rows=4))  # a budget is not for tools to choose
    part = tool.call("jobs.list", function="g")
    oldest = tool.call("jobs.show", handle=handles[1])
    assert (part["items"], part["searched_to"]) == ([], oldest["created_at"])
    rest = tool.call("jobs.list", function="g", cursor=part["next"])
    assert ([job["handle"] for job in rest["items"]], rest["next"]) == ([rare], None)


def test_the_search_for_a_disconnected_tool_ends(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, asked = node.connect(extended=True), list[object]()
    read = node.life.store.read

    def noted(query: Any, *rest: Any) -> None:
        asked.append(query)
        read(query, *rest)

    monkeypatch.setattr(node.life.store, "read", noted)
    tool.request(Type.CALL, b"7", b"jobs.list", b"{}")
    tool.wire.end()
    node.commit()
    assert asked == []


def test_lists_show_running_jobs_before_the_commit(node: Node) -> None:
    tool, worker = node.connect(extended=True), node.worker()
    first, second = tool.background(), tool.background()
    worker.ask(Type.GRAB_JOB)
    running = tool.call("jobs.list", state="running")["items"]
    leased = tool.call("jobs.list", state="leased")["items"]
    assert [job["handle"] for job in running] == [first]
    assert [job["handle"] for job in leased] == [second]


def test_foreground_jobs_are_listed(node: Node) -> None:
    tool, client = node.connect(extended=True), node.connect()
    _, (handle,) = client.ask(Type.SUBMIT_JOB, G, b"u", b"")
    for params in ({}, {"function": "g"}, {"unique": "u"}, {"state": "pending"}):
        assert [job["handle"] for job in tool.call("jobs.list", **params)["items"]] == [handle]
    assert tool.call("jobs.list", function="f")["items"] == []


def test_the_answer_to_a_cancel_has_the_state_of_the_job(node: Node) -> None:
    tool, worker = node.connect(extended=True), node.stream()
    running, waiting = tool.background(), tool.background()
    assert tool.call("jobs.cancel", handle=running) == {"handle": running, "state": "running"}
    assert tool.call("jobs.cancel", handle=waiting, reason="no") == {"handle": waiting, "state": "cancelled"}
    assert tool.call("jobs.show", handle=waiting)["error"] == "Cancelled: no"
    ((_, args),) = [packets for packets in worker.received() if packets[0] == "ASSIGN"]
    worker.request(Type.SETTLE, args[0].encode(), args[1].encode(), b"succeeded", b"", b"")
    node.commit()
    assert tool.call("jobs.cancel", handle=running) == {"handle": running, "state": "succeeded"}


def test_a_dead_letter_is_redriven(node: Node) -> None:
    tool, worker = node.connect(extended=True), node.worker()
    handle = tool.background()
    worker.ask(Type.GRAB_JOB)
    assert tool.call("jobs.retry", handle=handle) == "conflict"
    worker.request(Type.WORK_FAIL, handle.encode())
    node.commit()
    job = tool.call("jobs.retry", handle=handle)
    assert (job["handle"], job["state"], job["attempt"]) == (handle, "pending", 0)


def test_watchers_receive_changes(node: Node) -> None:
    tool, client, worker = node.connect(extended=True), node.connect(), node.worker()
    assert tool.call("jobs.watch", function="f") == {}
    assert tool.call("jobs.watch") == "conflict", "one watch for a connection"
    handle = client.background()
    client.background(function=G)
    worker.ask(Type.GRAB_JOB)
    worker.request(Type.WORK_COMPLETE, handle.encode(), b"")
    node.commit()
    events = [json.loads(args[1]) for name, args in tool.received() if name == "EVENT"]
    assert [(event["handle"], event["state"]) for event in events] == [
        (handle, "leased"),
        (handle, "running"),
        (handle, "succeeded"),
    ]
    assert node.service.hub.active
    tool.leave()
    assert not node.service.hub.active


def test_a_watcher_of_one_job_receives_only_its_changes(node: Node) -> None:
    tool, client = node.connect(extended=True), node.connect()
    handle = client.background()
    assert tool.call("jobs.watch", handle=handle) == {}
    client.background()
    node.connect(extended=True).call("jobs.cancel", handle=handle)
    assert [json.loads(args[1])["state"] for _, args in tool.received()] == ["cancelled"]


def test_a_slow_watcher_receives_the_number_of_missed_changes(node: Node) -> None:
    tool, client = node.connect(extended=True), node.connect()
    tool.call("jobs.watch")
    tool.wire.unsent = WATCHER_BACKLOG + 1
    for _ in range(3):
        client.background()
    assert tool.received() == []
    tool.wire.unsent = 0
    client.background()
    events = [json.loads(args[1]) for _, args in tool.received()]
    assert events[0] == {"missed": 3}
    assert len(events) == 2


def test_the_status_of_the_node_is_shown(node: Node) -> None:
    functions = [FunctionStatus("f", 6, 0, 0, WaitingJobs(1, 2, 3))]
    numbers = JobNumbers(6, 0, 6), CommitNumbers(2, 9)
    status = NodeStatus("1", "n", 7, "memory://", 1, 0.5, 1, True, 0, 1, *numbers, functions)
    node.life.api.add(StatusCalls(node.service, lambda *_: status).handlers)
    name, (_, shown) = node.connect(extended=True).ask(Type.CALL, b"1", b"node.status", b"")
    assert name == "ANSWER"
    assert shown == (
        '{"version":"1","name":"n","term":7,"store":"memory://","pid":1,"uptime":0.5,"connections":1,"schedules":true,'
        '"workers":0,"known_functions":1,"jobs":{"total":6,"running":0,"waiting":6},"commits":{"groups":2,"jobs":9},'
        '"functions":[{"function":"f","total":6,"running":0,"workers":0,"waiting":{"high":1,"normal":2,"low":3}}],"workflows":[],'
        '"set_aside":[]}'
    )


def test_bytes_of_a_name_that_are_not_utf_8_are_shown_as_escapes(node: Node) -> None:
    tool = node.connect(extended=True)
    tool.background(function=b"\xff" + F)
    (job,) = tool.call("jobs.list")["items"]
    assert job["function"] == "\\xfff"
    assert [one["handle"] for one in tool.call("jobs.list", function="\\xfff")["items"]] == [job["handle"]]
    assert not tool.call("jobs.list", function="\\\\xfff")["items"], "the function named backslash, x, f, f, f"


def test_a_job_is_found_by_the_text_of_its_unique(node: Node) -> None:
    tool = node.connect(extended=True)
    for unique in (b"u\xff", b"u\\xff", b"u\\"):
        tool.background(unique=unique)
    for shown in [job["unique"] for job in tool.call("jobs.list")["items"]]:
        assert [job["unique"] for job in tool.call("jobs.list", unique=shown)["items"]] == [shown]


class _Fragile(Request[None]):
    permission = Permission.READ
    call = "test.fragile"


@pytest.mark.parametrize("is_late", [False, True])
def test_a_call_that_fails_because_of_a_defect_is_answered(node: Node, *, is_late: bool) -> None:
    reads: list[Callable[[None], None]] = []

    async def fragile(_: _Fragile, __: Call) -> None:
        if is_late:
            await Callback[None](lambda done, _: reads.append(done))
        raise KeyError("planted")

    node.life.api.add({_Fragile: fragile})
    tool = node.connect(extended=True)
    with structlog.testing.capture_logs() as logged:
        tool.request(Type.CALL, b"7", b"test.fragile", b"{}")
        for done in reads:
            done(None)
    assert tool.answer() == ("FAULT", ["7", "unavailable", DEFECT.message])
    assert [line["call"] for line in logged] == ["test.fragile"]
    assert tool.call("jobs.list")["items"] == [], "the connection goes on, and its request is no longer counted"


def test_the_strings_of_a_watch_have_limits(node: Node) -> None:
    tool = node.connect(extended=True)
    name, (code, _) = tool.ask(Type.CALL, b"7" * 1025, b"jobs.watch", b"{}")
    assert (name, code) == ("ERROR", "ARGUMENT_TOO_LARGE")
    assert tool.call("jobs.watch", function="f" * 513) == "usage"
    assert not node.service.hub.active
    name, (answered, _) = tool.ask(Type.CALL, b"7" * 1024, b"jobs.watch", b"{}")
    assert (name, answered) == ("ANSWER", "7" * 1024)


def test_the_reason_of_a_cancel_has_a_limit(node: Node) -> None:
    tool = node.connect(extended=True)
    handle = tool.background()
    assert tool.call("jobs.cancel", handle=handle, reason="r" * 4097) == "usage"
    assert tool.call("jobs.cancel", handle=handle, reason="r" * 4096)["state"] == "cancelled"


def test_requests_have_the_depth_that_the_connection_states(node: Node) -> None:
    tool, other, worker = (node.connect(extended=True) for _ in range(3))
    worker.request(Type.REGISTER, b"f", b"")
    worker.request(Type.READY, b"9")
    node.commit()
    worker.received()
    # It waits in a batch when the depth changes.
    tool.request(Type.SUBMIT_JOB_BG, b"f", b"", b"plain, before")
    tool.request(Type.CALL, b"7", b"requests.depth", b'{"depth": 4}')
    tool.request(Type.SUBMIT_JOB_BG, b"f", b"", b"plain")
    tool.request(Type.SUBMIT, b"f", b"", b"", b"submit")
    tool.request(Type.SUBMIT_JOB, b"f", b"", b"foreground")
    other.request(Type.SUBMIT, b"f", b"", b"", b"of another connection")
    tool.request(Type.CALL, b"7", b"requests.depth", b'{"depth": 0}')
    tool.request(Type.SUBMIT, b"f", b"", b"", b"after")
    node.commit()
    found = {args[5]: json.loads(args[4]).get("depth", 0) for name, args in worker.received() if name == "ASSIGN"}
    assert found == {
        "plain, before": 0,
        "plain": 4,
        "submit": 4,
        "foreground": 4,
        "of another connection": 0,
        "after": 0,
    }
