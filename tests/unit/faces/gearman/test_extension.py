"""The extension, packet by packet; docs/reference/protocol.md is the specification."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mainspring.api.handlers.pages import rfc3339
from mainspring.clock import to_us
from mainspring.features import Feature
from mainspring.wire.gearman_protocol import Type, request

from .a_face import F, G, Node, Packet, Peer

RESULT = b"done"


def options(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def submit(peer: Peer, payload: bytes = b"load", unique: bytes = b"", **fields: Any) -> str:
    name, args = peer.ask(Type.SUBMIT, F, unique, options(**fields), payload)
    assert name == "SUBMITTED"
    return args[0]


def assigned(worker: Peer) -> tuple[bytes, bytes, dict[str, Any]]:
    """Return the handle, delivery token and info of the only job that the worker has just received."""
    ((name, args),) = worker.received()
    assert name == "ASSIGN"
    return args[0].encode(), args[1].encode(), json.loads(args[4])


def settle(worker: Peer, handle: bytes, token: bytes, outcome: bytes = b"succeeded", **detail: Any) -> None:
    worker.request(Type.SETTLE, handle, token, outcome, options(**detail) if detail else b"", RESULT)


def show(node: Node, handle: bytes | str) -> dict[str, Any]:
    text = handle.decode() if isinstance(handle, bytes) else handle
    shown: dict[str, Any] = node.connect(extended=True).call("jobs.show", handle=text)
    return shown


@pytest.mark.parametrize(
    ("kind", "args"), [(Type.HISTORY, (b"7", b"1")), (Type.DECIDE, (b"1", b"")), (Type.FORGOTTEN, (b"",))]
)
def test_packets_about_runs_are_refused_by_a_store_without_them(node: Node, kind: int, args: tuple[bytes, ...]) -> None:
    peer = node.connect(extended=True)
    answer, (code, message) = peer.ask(kind, *args)
    assert (answer, code) == ("ERROR", "UNSUPPORTED")
    assert "keeps no workflows" in message


@pytest.mark.parametrize("version", ["", "2"])
def test_a_store_without_workflows_refuses_to_start_a_run(node: Node, version: str) -> None:
    peer = node.connect(extended=True)
    answer, (code, message) = peer.ask(Type.SUBMIT, b"order", b"", options(version=version), b"")
    assert (answer, code) == ("ERROR", "INVALID_ARGUMENTS")
    assert message == Feature.WORKFLOWS.refusal


# ---- clients ----


def test_a_batch_is_answered_in_its_order(node: Node) -> None:
    client = node.connect(extended=True)
    client.send(
        b"".join(
            request(Type.SUBMIT, F, unique, text, b"")
            for unique, text in ((b"", b""), (b"u", b"{}"), (b"", b"{"), (b"u", b""), (b"", b'{"wait": true}'))
        )
        + request(Type.SUBMIT_JOB_BG, F, b"", b"")
    )
    node.commit()
    packets = client.received()
    assert [name for name, _ in packets] == ["SUBMITTED", "SUBMITTED", "ERROR", "SUBMITTED", "SUBMITTED", "JOB_CREATED"]
    assert [args[1] for name, args in packets if name == "SUBMITTED"] == ["0", "0", "1", "0"]
    assert packets[1][1][0] == packets[3][1][0]


@pytest.mark.parametrize(
    "fields",
    [
        {"delay": -1},
        {"delay": 1e12},
        {"timeout": "soon"},
        {"timeout": 0},
        {"heartbeat": 0.0},
        {"priority": "urgent"},
        {"colour": "red"},
        {"delay": 1, "run_at": "2030-01-01T00:00:00Z"},
        {"run_at": "2030-01-01T00:00:00"},
        {"run_at": "9999-12-31T00:00:00Z"},
        {"retry": {"max_attempts": 0}},
        {"retry": {"max_attempts": 10**30}},
        {"retry": {"initial": 1e30}},
        {"retry": {"maximum": 1e30}},
        {"retry": {"jitter": 2}},
        {"retry": {"attempts": 2}},
        {"expires": -0.1},
        {"keep_unique": -1},
        [1],
    ],
)
def test_invalid_options_are_refused(node: Node, fields: Any) -> None:
    client = node.connect(extended=True)
    name, args = client.ask(Type.SUBMIT, F, b"", json.dumps(fields).encode(), b"")
    assert (name, args[0]) == ("ERROR", "INVALID_ARGUMENTS")
    assert submit(client)


def test_options_that_are_not_utf_8_are_refused(node: Node) -> None:
    name, args = node.connect(extended=True).ask(Type.SUBMIT, F, b"", b'{"concurrency_key": "\xff"}', b"")
    assert (name, args[0]) == ("ERROR", "INVALID_ARGUMENTS")


def test_an_assignment_does_not_repeat_the_workers_own_policy(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream(retry={"max_attempts": 5})
    submit(client)
    _, _, info = assigned(worker)
    assert info["max_attempts"] == 5
    assert "retry" not in info


def test_options_reach_the_job_and_its_worker(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream()
    handle = submit(
        client, unique=b"u", priority="high", timeout=5, heartbeat=2.5, retry={"max_attempts": 4}, expires=60
    )
    got, token, info = assigned(worker)
    assert got.decode() == handle
    assert token.startswith(b"%d." % node.life.term)
    assert {name: info[name] for name in ("attempt", "term", "timeout", "heartbeat", "max_attempts")} == {
        "attempt": 1,
        "term": node.life.term,
        "timeout": 5,
        "heartbeat": 2.5,
        "max_attempts": 4,
    }
    assert info["deadline"] == pytest.approx(node.clock.wall() + 5)
    assert info["retry"] == {"max_attempts": 4, "initial": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.1}
    shown = show(node, handle)
    assert (shown["priority"], shown["state"], shown["max_attempts"]) == ("high", "running", 4)


@pytest.mark.parametrize("way", ["delay", "run_at"])
def test_a_delayed_job_is_scheduled(node: Node, way: str) -> None:
    client, worker = node.connect(extended=True), node.stream()
    handle = submit(client, delay=5) if way == "delay" else submit(client, run_at=rfc3339(to_us(node.clock.wall() + 5)))
    assert show(node, handle)["state"] == "scheduled"
    node.wait(4.9)
    assert worker.received() == []
    node.wait(0.2)
    assert assigned(worker)[0].decode() == handle


def test_a_submitter_can_wait_for_the_result(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream()
    handle = submit(client, wait=True)
    job, token, _ = assigned(worker)
    worker.request(Type.WORK_STATUS, job, b"1", b"2")
    settle(worker, job, token)
    assert client.received() == [("WORK_STATUS", [handle, "1", "2"])]
    node.commit()
    assert client.received() == [("RESULT", [handle, "succeeded", "1", "", "done"])]


def test_a_submitter_that_joins_can_wait_even_for_an_ended_job(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream()
    handle = submit(client, unique=b"u", keep_unique=60)
    job, token, _ = assigned(worker)
    settle(worker, job, token)
    node.commit()
    client.request(Type.SUBMIT, F, b"u", options(keep_unique=60, wait=True), b"")
    node.commit()
    assert client.received() == [
        ("SUBMITTED", [handle, "1"]),
        ("RESULT", [handle, "succeeded", "1", "", "done"]),
    ]


@pytest.mark.parametrize("handle", ["H:n:1000000999999", "nonsense", ""])
def test_waiting_for_an_unknown_job_has_an_answer(node: Node, handle: str) -> None:
    client = node.connect(extended=True)
    assert client.ask(Type.WAIT, handle.encode()) == ("RESULT", [handle, "unknown", "0", "", ""])


def test_a_submission_of_a_disconnected_client_leaves_no_listener(node: Node) -> None:
    client = node.connect(extended=True)
    client.request(Type.SUBMIT, F, b"", options(wait=True), b"")
    client.leave()
    node.commit()
    assert len(node.service.listeners) == 0
    assert node.service.dispatch.queues[F].live == 1


def test_a_batch_that_partly_joins_a_foreground_job_is_answered_job_by_job(node: Node) -> None:
    """Only the submission that joins a foreground job has to wait until this job is stored."""
    plain, client = node.connect(), node.connect(extended=True)
    plain.request(Type.SUBMIT_JOB, F, b"u", b"")
    plain.request(Type.SUBMIT_JOB_BG, F, b"u", b"")
    client.send(
        request(Type.SUBMIT, F, b"", options(expires=0, wait=True), b"")
        + request(Type.SUBMIT, F, b"u", options(wait=True), b"")
        + request(Type.SUBMIT, F, b"", b"", b"")
    )
    node.life.loop.soon.popleft()()
    node.life.store.finish()
    assert [name for name, _ in client.received()] == ["SUBMITTED"]
    node.life.run_due()
    node.commit()
    packets = client.received()
    assert [(name, args[1]) for name, args in packets] == [
        ("SUBMITTED", "1"),
        ("SUBMITTED", "0"),
        ("RESULT", "expired"),
    ]


def test_a_refused_submission_of_a_batch_is_refused_alone(node: Node) -> None:
    plain, client = node.connect(), node.connect(extended=True)
    plain.request(Type.SUBMIT_JOB, F, b"u", b"")
    plain.request(Type.SUBMIT_JOB_BG, F, b"u", b"")
    client.send(request(Type.SUBMIT, F, b"", b"", b"") + request(Type.SUBMIT, F, b"u", b"", b""))
    node.life.loop.soon.popleft()()
    node.life.store.finish()
    node.fail()
    assert [name for name, _ in client.received()] == ["SUBMITTED", "ERROR"]


def test_a_refused_submission_has_no_listener(node: Node) -> None:
    client = node.connect(extended=True)
    client.request(Type.SUBMIT, F, b"", options(wait=True), b"")
    node.fail()
    assert client.received()[0][0] == "ERROR"
    assert len(node.service.listeners) == 0


# ---- workers ----


def test_a_worker_gets_jobs_up_to_its_readiness(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream(places=2)
    handles = [submit(client) for _ in range(3)]
    assert [args[0] for _, args in worker.received()] == handles[:2]
    worker.request(Type.READY, b"1")
    assert [args[0] for _, args in worker.received()] == handles[2:]


@pytest.mark.parametrize("count", [b"", b"-1", b"many", b"1000000"])
def test_ready_without_a_number_is_refused(node: Node, count: bytes) -> None:
    name, args = node.connect(extended=True).ask(Type.READY, count)
    assert (name, args[0]) == ("ERROR", "INVALID_ARGUMENTS")


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b'{"timeout": -1}',
        b'{"timeout": 0}',
        b'{"heartbeat": 0}',
        b'{"retry": {"jitter": 9}}',
        b'{"delay": 1}',
        b'{"\xff": 1}',
    ],
)
def test_invalid_options_of_register_are_refused(node: Node, text: bytes) -> None:
    worker = node.connect(extended=True)
    name, args = worker.ask(Type.REGISTER, F, text)
    assert (name, args[0]) == ("ERROR", "INVALID_ARGUMENTS")
    assert F not in node.service.dispatch.queues or not node.service.dispatch.queues[F].workers


def test_a_timeout_of_zero_is_refused(node: Node) -> None:
    """Only in CAN_DO_TIMEOUT 0 means no timeout, as in Gearman."""
    peer = node.connect(extended=True)
    for kind, *args in ((Type.SUBMIT, F, b"", b'{"timeout": 0}', b""), (Type.REGISTER, F, b'{"timeout": 0}')):
        _, (_, message) = peer.ask(kind, *args)
        assert "timeout is 0, which would end each attempt at once: leave it out for none" in message
    peer.request(Type.CAN_DO_TIMEOUT, F, b"0")
    assert peer.received() == []


@pytest.mark.parametrize(
    ("outcome", "detail", "state"),
    [
        (b"succeeded", {}, "succeeded"),
        (b"failed", {}, "failed"),
        (b"failed", {"error": {"type": "Oops", "message": "it broke"}, "final": True}, "failed"),
        (b"released", {}, "leased"),
        (b"snoozed", {"delay": 60}, "scheduled"),
        (b"cancelled", {}, "cancelled"),
    ],
)
def test_an_outcome_sets_the_state_of_its_job(node: Node, outcome: bytes, detail: dict[str, Any], state: str) -> None:
    client, worker = node.connect(extended=True), node.stream()
    handle = submit(client)
    job, token, _ = assigned(worker)
    settle(worker, job, token, outcome, **detail)
    assert worker.received() == []
    assert worker.answer() == ("SETTLED", [handle, token.decode(), "recorded"])
    shown = show(node, handle)
    assert shown["state"] == state
    if detail.get("error"):
        assert shown["error"] == "Oops: it broke"


def test_an_unknown_outcome_changes_nothing(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream()
    submit(client)
    job, token, _ = assigned(worker)
    settle(worker, job, token, b"exploded")
    assert worker.received()[0][1][0] == "INVALID_ARGUMENTS"
    settle(worker, job, token)
    assert worker.answer()[1][2] == "recorded"


@pytest.mark.parametrize("detail", [b"{", b'{"error": {"type": "\xff", "message": ""}}'])
def test_an_unreadable_detail_fails_the_job(node: Node, detail: bytes) -> None:
    client, worker = node.connect(extended=True), node.stream()
    handle = submit(client, retry={})
    job, token, _ = assigned(worker)
    worker.request(Type.SETTLE, job, token, b"succeeded", detail, RESULT)
    assert worker.answer()[1][2] == "recorded"
    assert "ProtocolError" in show(node, handle)["error"]
    worker.request(Type.SETTLE, job, token, b"succeeded", detail, RESULT)
    assert worker.answer()[1][2] == "recorded", "repeated"


def test_a_repeated_settlement_is_recorded_over_another_connection_and_after_a_restart(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream()
    submit(client)
    job, token, _ = assigned(worker)
    settle(worker, job, token)
    node.commit()
    second = node.stream()
    settle(second, job, token)
    assert second.answer()[1][2] == "recorded"
    settle(second, job, b"1.1.99")
    assert second.answer()[1][2] == "recorded", "the token names the same term and attempt"
    for wrong in (b"9.1.1", b"1.2.1", b"", b"x.y.z"):
        settle(second, job, wrong)
        assert second.answer()[1][2] == "stale"
    later = Node(node)
    last = later.stream()
    settle(last, job, token)
    assert last.answer()[1][2] == "recorded"
    for other in (b"other", b"", RESULT + RESULT):
        last.request(Type.SETTLE, job, token, b"succeeded", b"", other)
        assert last.answer()[1][2] == "stale", "another outcome was recorded"
    last.request(Type.SETTLE, b"nonsense", token, b"succeeded", b"", b"other")
    assert last.answer()[1][2] == "stale"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"reason": "the customer has left"}, "the customer has left"),
        ({"reason": ""}, "cancelled while it ran"),
        ({}, "cancelled on request"),
    ],
)
@pytest.mark.parametrize("outcome", [b"cancelled", b"released"])
def test_a_cancelled_job_has_the_reason_even_if_its_worker_was_asked(
    node: Node, outcome: bytes, params: dict[str, str], message: str
) -> None:
    client, worker = node.connect(extended=True), node.stream()
    handle = client.background()
    node.commit()
    ((_, (_, token, *_)),) = worker.received()
    assert client.call("jobs.cancel", handle=handle, **params)["state"] == "running"
    assert worker.received() == [("STOP", [handle, token, "cancelled"])]
    worker.request(Type.SETTLE, handle.encode(), token.encode(), outcome, b"", b"")
    node.commit()
    assert client.call("jobs.show", handle=handle)["error"] == f"Cancelled: {message}"


def test_a_settlement_above_the_largest_packet_fails_its_job_finally(node: Node) -> None:
    object.__setattr__(node.face.settings, "max_packet", 1000)
    client, worker = node.connect(extended=True), node.stream(retry={"max_attempts": 5})
    handle = client.background()
    node.commit()
    ((_, (_, token, *_)),) = worker.received()
    fields = (Type.SETTLE, handle.encode(), token.encode(), b"succeeded", b"", b"x" * 2000)
    assert worker.ask(*fields) == ("SETTLED", [handle, token, "recorded"])
    shown = client.call("jobs.show", handle=handle)
    assert shown["state"] == "failed"
    assert shown["error"].startswith("ResultTooLarge: A body of 20")
    assert worker.ask(*fields) == ("SETTLED", [handle, token, "recorded"]), "repeated"
    assert worker.ask(Type.SETTLE, handle.encode(), b"1.9.9", *fields[3:]) == ("SETTLED", [handle, "1.9.9", "stale"])


def test_a_settlement_too_large_to_be_dropped_is_answered_before_the_connection_ends(node: Node) -> None:
    """Otherwise its worker would repeat it on each new connection."""
    object.__setattr__(node.face.settings, "max_packet", 1000)
    client, worker = node.connect(extended=True), node.stream(retry={"max_attempts": 5})
    handle = client.background()
    node.commit()
    ((_, (_, token, *_)),) = worker.received()
    fields = (Type.SETTLE, handle.encode(), token.encode(), b"succeeded", b"", b"x" * 17_000)
    for _ in ("first", "repeated"):
        worker.request(*fields)
        node.commit()
        settled, error = worker.received()
        assert settled == ("SETTLED", [handle, token, "recorded"])
        assert (error[0], error[1][0]) == ("ERROR", "ARGUMENT_TOO_LARGE")
        assert worker.closed
        worker = node.connect(extended=True)
    shown = client.call("jobs.show", handle=handle)
    assert (shown["state"], shown["attempt"]) == ("failed", 1)
    assert shown["error"].startswith("ResultTooLarge: A body of 17")


def test_a_settlement_repeated_before_the_first_is_committed_is_recorded(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream()
    submit(client)
    job, token, _ = assigned(worker)
    settle(worker, job, token)
    second = node.stream()
    settle(second, job, token)
    node.fail()
    assert (worker.received(), second.received()) == ([], [])
    node.wait(1.0)
    assert worker.received()[0][1][2] == "recorded"
    assert second.received()[0][1][2] == "recorded"


def test_the_settlement_of_a_lost_delivery_is_stale(node: Node) -> None:
    client, worker, other = node.connect(extended=True), node.stream(), node.stream()
    handle = submit(client)
    job, token, _ = assigned(worker)
    worker.leave()
    node.commit()
    _, second, info = assigned(other)
    assert (info["attempt"], "alone" in info) == (1, False)
    back = node.stream(places=0)
    settle(back, job, token)
    assert back.answer()[1][2] == "stale"
    settle(other, job, second)
    assert other.answer()[1][2] == "recorded"
    assert show(node, handle)["attempt"] == 1


def test_the_token_of_an_earlier_delivery_settles_no_later_one(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream()
    submit(client)
    job, token, _ = assigned(worker)
    settle(worker, job, token, b"released")
    node.commit()
    worker.request(Type.READY, b"1")
    node.commit()
    second = next(args[1] for name, args in worker.received() if name == "ASSIGN").encode()
    assert second != token
    settle(worker, job, token)
    assert worker.answer()[1][2] == "stale"
    settle(worker, job, second)
    assert worker.answer()[1][2] == "recorded"


def test_a_result_too_large_for_the_store_fails_its_job_finally(node: Node) -> None:
    object.__setattr__(node.face.settings, "max_value", 3)
    client, worker = node.connect(extended=True), node.stream(retry={"max_attempts": 5})
    handle = submit(client, b"")
    job, token, _ = assigned(worker)
    settle(worker, job, token)
    assert worker.answer()[1][2] == "recorded"
    shown = show(node, handle)
    assert shown["state"] == "failed"
    assert shown["error"].startswith("ResultTooLarge")


def test_a_job_of_two_lost_workers_runs_alone(node: Node) -> None:
    submit(node.connect(extended=True))
    for _ in range(2):
        worker = node.stream()
        node.commit()
        assert "alone" not in assigned(worker)[2]
        worker.leave()
    worker = node.stream()
    node.commit()
    assert assigned(worker)[2]["alone"] is True


def test_the_answer_to_a_heartbeat_lists_jobs_to_stop_and_lost_ones(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream(places=2)
    submit(client)
    one = assigned(worker)
    submit(client)
    two = assigned(worker)
    client.call("jobs.cancel", handle=one[0].decode())
    assert worker.received() == [("STOP", [one[0].decode(), one[1].decode(), "cancelled"])]
    jobs = [[handle.decode(), token.decode()] for handle, token, _ in (one, two)]
    name, (text,) = worker.ask(Type.HEARTBEAT, json.dumps({"jobs": [*jobs, ["H:n:9", "1.1.1"]]}).encode())
    assert name == "BEATEN"
    assert json.loads(text) == {"stop": [jobs[0]], "lost": [["H:n:9", "1.1.1"]]}


@pytest.mark.parametrize("body", [b"", b"{}", b'{"jobs": [1]}', b"\xff", b'{"jobs": [["\xff", ""]]}'])
def test_an_unreadable_heartbeat_is_refused(node: Node, body: bytes) -> None:
    name, args = node.connect(extended=True).ask(Type.HEARTBEAT, body)
    assert (name, args[0]) == ("ERROR", "INVALID_ARGUMENTS")


def test_a_job_beyond_its_timeout_is_stopped(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream()
    submit(client, timeout=2)
    job, token, _ = assigned(worker)
    node.wait(2.1)
    assert worker.received() == [("STOP", [job.decode(), token.decode(), "timeout"])]
    settle(worker, job, token)
    assert worker.answer()[1][2] == "stale"
    settle(worker, job, token, b"failed")
    assert worker.answer()[1][2] == "stale", "it failed, but by its timeout"


def test_a_paused_worker_gets_no_jobs_until_it_is_ready(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream(F, G, places=5)
    assert worker.ask(Type.PAUSE) == ("PAUSED", [])
    handle = submit(client)
    assert worker.received() == []
    worker.request(Type.READY, b"1")
    assert assigned(worker)[0].decode() == handle


def test_jobs_of_an_unregistered_function_go_to_other_workers(node: Node) -> None:
    client, worker, other = node.connect(extended=True), node.stream(), node.stream()
    submit(client)
    assigned(worker)
    worker.request(Type.CANT_DO, F)
    node.commit()
    assert assigned(other)[2]["attempt"] == 2


def test_plain_and_extended_peers_share_their_jobs(node: Node) -> None:
    plain, worker = node.connect(), node.stream()
    _, (handle,) = plain.ask(Type.SUBMIT_JOB, F, b"", b"load")
    job, token, info = assigned(worker)
    assert info["attempt"] == 1
    settle(worker, job, token)
    assert plain.received() == [("WORK_COMPLETE", [handle, "done"])]
    old = node.worker()
    worker.leave()
    client = node.connect(extended=True)
    handle = submit(client, wait=True)
    name, args = old.ask(Type.GRAB_JOB)
    assert (name, args[0]) == ("JOB_ASSIGN", handle)
    old.request(Type.WORK_FAIL, handle.encode())
    packets: Packet = client.answer()
    assert (packets[0], packets[1][:3]) == ("RESULT", [handle, "failed", "1"])


def test_a_client_with_the_exceptions_option_receives_the_error(node: Node) -> None:
    plain, worker = node.connect(), node.stream()
    plain.ask(Type.OPTION_REQ, b"exceptions")
    _, (handle,) = plain.ask(Type.SUBMIT_JOB, F, b"", b"load")
    job, token, _ = assigned(worker)
    settle(worker, job, token, b"failed", error={"type": "Oops", "message": "it broke"})
    assert plain.received() == [("WORK_EXCEPTION", [handle, "Oops: it broke"])]


# ---- unread results ----


def large_result(node: Node, size: int) -> str:
    """Run a job without a waiting client."""
    handle = submit(node.connect(extended=True))
    worker = node.stream()
    node.commit()
    name, token, _ = assigned(worker)
    worker.request(Type.SETTLE, name, token, b"succeeded", b"", b"r" * size)
    node.commit()
    worker.leave()
    return handle


def test_no_more_results_are_read_for_a_peer_that_does_not_read_and_none_is_lost(node: Node) -> None:
    size = 300_000
    handles = [large_result(node, size) for _ in range(5)]
    object.__setattr__(node.face.settings, "unsent_bytes", size)
    client = node.connect(extended=True)
    client.wire.protocol.pause_writing()
    for handle in handles:
        client.request(Type.WAIT, handle.encode())
        node.commit()
    assert client.received() == []
    outgoing = client.wire.peer.outgoing
    assert (len(node.service.outcomes), outgoing.full) == (4, True)
    assert outgoing.unread < size + 200
    packets: list[str] = []
    for _ in range(20):
        client.wire.protocol.resume_writing()
        node.commit()
        node.wait(0)
        for name, args in client.received():
            assert (name, args[1], len(args[4])) == ("RESULT", "succeeded", size)
            packets.append(args[0])
        client.wire.protocol.pause_writing()
    assert sorted(packets) == sorted(handles)
    assert not outgoing.full
    assert not len(node.service.outcomes)


def test_peers_that_wait_for_one_job_share_its_result(node: Node) -> None:
    clients = [node.connect(extended=True) for _ in range(5)]
    for client in clients:
        client.wire.protocol.pause_writing()
    handle = submit(node.connect(extended=True)).encode()
    for client in clients:
        client.request(Type.WAIT, handle)
    node.commit()
    worker = node.stream()
    node.commit()
    name, token, _ = assigned(worker)
    worker.request(Type.SETTLE, name, token, b"succeeded", b"", b"r" * 300_000)
    node.commit()
    bodies = {id(data) for client in clients for data, _ in client.wire.peer.outgoing._queue if len(data) >= 300_000}  # noqa: SLF001 - that they share one object shows nowhere else
    assert len(bodies) == 1
    for client in clients:
        client.wire.protocol.resume_writing()
        ((fields, args),) = client.received()
        assert (fields, args[4]) == ("RESULT", "r" * 300_000)


@pytest.mark.parametrize("key", ["k", "", "k" * 256])
def test_a_node_that_keeps_no_request_keys_takes_no_submit_with_one(node: Node, key: str) -> None:
    client = node.connect(extended=True)
    name, args = client.ask(Type.SUBMIT, F, b"", options(request_key=key), b"load")
    assert (name, args[0]) == ("ERROR", "UNSUPPORTED")
    assert "leave out request_key" in args[1]
    assert F not in node.service.dispatch.queues


@pytest.mark.parametrize("option", [b"mainspring/1", b"mainspring/1 secret", b"mainspring/3"])
def test_a_peer_of_another_version_is_refused_with_both_versions(node: Node, option: bytes) -> None:
    peer = node.connect()
    peer.send(request(Type.OPTION_REQ, option))
    ((name, (code, message)),) = peer.received()
    assert (name, code) == ("ERROR", "OTHER_VERSION")
    assert "mainspring/2" in message
    assert option.partition(b" ")[0].decode() in message
    assert "secret" not in message
