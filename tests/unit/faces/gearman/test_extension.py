"""The extension, packet by packet; docs/reference/protocol.md is the specification."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mainspring.wire.gearman.packets import Type, request

from .a_face import F, G, Heard, Node, Peer

DONE = b"done"


def options(**said: Any) -> bytes:
    return json.dumps(said).encode()


def submit(peer: Peer, payload: bytes = b"load", unique: bytes = b"", **said: Any) -> str:
    name, args = peer.ask(Type.SUBMIT, F, unique, options(**said), payload)
    assert name == "SUBMITTED"
    return args[0]


def assigned(worker: Peer) -> tuple[bytes, bytes, dict[str, Any]]:
    """The handle, lease and info of the one job that the worker was just given."""
    ((name, args),) = worker.hear()
    assert name == "ASSIGN"
    return args[0].encode(), args[1].encode(), json.loads(args[4])


def settle(worker: Peer, handle: bytes, token: bytes, outcome: bytes = b"succeeded", **detail: Any) -> None:
    worker.say(Type.SETTLE, handle, token, outcome, options(**detail) if detail else b"", DONE)


def show(node: Node, handle: bytes | str) -> dict[str, Any]:
    text = handle.decode() if isinstance(handle, bytes) else handle
    shown: dict[str, Any] = node.connect(extended=True).call("jobs.show", handle=text)
    return shown


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
    heard = client.hear()
    assert [name for name, _ in heard] == ["SUBMITTED", "SUBMITTED", "ERROR", "SUBMITTED", "SUBMITTED", "JOB_CREATED"]
    assert [args[1] for name, args in heard if name == "SUBMITTED"] == ["0", "0", "1", "0"]
    assert heard[1][1][0] == heard[3][1][0]


@pytest.mark.parametrize(
    "said",
    [
        {"delay": -1},
        {"delay": 1e12},
        {"timeout": "soon"},
        {"timeout": 0},
        {"heartbeat": 0.0},
        {"priority": "urgent"},
        {"colour": "red"},
        {"delay": 1, "run_at": 1},
        {"run_at": 1e12},
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
def test_options_that_cannot_be_right_are_refused(node: Node, said: Any) -> None:
    client = node.connect(extended=True)
    name, args = client.ask(Type.SUBMIT, F, b"", json.dumps(said).encode(), b"")
    assert (name, args[0]) == ("ERROR", "INVALID_ARGUMENTS")
    assert submit(client)


def test_options_that_are_no_text_are_refused(node: Node) -> None:
    name, args = node.connect(extended=True).ask(Type.SUBMIT, F, b"", b'{"concurrency_key": "\xff"}', b"")
    assert (name, args[0]) == ("ERROR", "INVALID_ARGUMENTS")


def test_a_worker_is_not_told_its_own_policy(node: Node) -> None:
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
def test_a_job_for_later(node: Node, way: str) -> None:
    client, worker = node.connect(extended=True), node.stream()
    handle = submit(client, delay=5) if way == "delay" else submit(client, run_at=node.clock.wall() + 5)
    assert show(node, handle)["state"] == "scheduled"
    node.wait(4.9)
    assert worker.hear() == []
    node.wait(0.2)
    assert assigned(worker)[0].decode() == handle


def test_who_submits_can_wait_for_the_result(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream()
    handle = submit(client, wait=True)
    job, token, _ = assigned(worker)
    worker.say(Type.WORK_STATUS, job, b"1", b"2")
    settle(worker, job, token)
    assert client.hear() == [("WORK_STATUS", [handle, "1", "2"])]
    node.commit()
    assert client.hear() == [("RESULT", [handle, "succeeded", "1", "", "done"])]


def test_who_joins_can_wait_too_also_for_what_has_ended(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream()
    handle = submit(client, unique=b"u", keep_unique=60)
    job, token, _ = assigned(worker)
    settle(worker, job, token)
    node.commit()
    client.say(Type.SUBMIT, F, b"u", options(keep_unique=60, wait=True), b"")
    node.commit()
    assert client.hear() == [
        ("SUBMITTED", [handle, "1"]),
        ("RESULT", [handle, "succeeded", "1", "", "done"]),
    ]


@pytest.mark.parametrize("handle", ["H:n:1000000999999", "nonsense", ""])
def test_who_waits_for_an_unknown_job_is_told(node: Node, handle: str) -> None:
    client = node.connect(extended=True)
    assert client.ask(Type.WAIT, handle.encode()) == ("RESULT", [handle, "unknown", "0", "", ""])


def test_a_submission_whose_client_is_gone_leaves_no_listener(node: Node) -> None:
    client = node.connect(extended=True)
    client.say(Type.SUBMIT, F, b"", options(wait=True), b"")
    client.leave()
    node.commit()
    assert len(node.service.listeners) == 0
    assert node.service.dispatch.queues[F].live == 1


def test_a_batch_of_which_a_part_joins_a_foreground_job_is_answered_job_by_job(node: Node) -> None:
    """What joins a foreground job that is just being stored has to wait for that; the others have not."""
    plain, client = node.connect(), node.connect(extended=True)
    plain.say(Type.SUBMIT_JOB, F, b"u", b"")
    plain.say(Type.SUBMIT_JOB_BG, F, b"u", b"")
    client.send(
        request(Type.SUBMIT, F, b"", options(expires=0, wait=True), b"")
        + request(Type.SUBMIT, F, b"u", options(wait=True), b"")
        + request(Type.SUBMIT, F, b"", b"", b"")
    )
    node.life.loop.soon.popleft()()
    node.life.store.finish()
    assert [name for name, _ in client.hear()] == ["SUBMITTED"]
    node.life.run_due()
    node.commit()
    heard = client.hear()
    assert [(name, args[1]) for name, args in heard] == [
        ("SUBMITTED", "1"),
        ("SUBMITTED", "0"),
        ("RESULT", "expired"),
    ]


def test_a_part_of_a_batch_that_is_refused_is_refused_alone(node: Node) -> None:
    plain, client = node.connect(), node.connect(extended=True)
    plain.say(Type.SUBMIT_JOB, F, b"u", b"")
    plain.say(Type.SUBMIT_JOB_BG, F, b"u", b"")
    client.send(request(Type.SUBMIT, F, b"", b"", b"") + request(Type.SUBMIT, F, b"u", b"", b""))
    node.life.loop.soon.popleft()()
    node.life.store.finish()
    node.fail()
    assert [name for name, _ in client.hear()] == ["SUBMITTED", "ERROR"]


def test_nobody_waits_for_what_was_refused(node: Node) -> None:
    client = node.connect(extended=True)
    client.say(Type.SUBMIT, F, b"", options(wait=True), b"")
    node.fail()
    assert client.hear()[0][0] == "ERROR"
    assert len(node.service.listeners) == 0


# ---- workers ----


def test_jobs_come_while_there_are_places(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream(places=2)
    handles = [submit(client) for _ in range(3)]
    assert [args[0] for _, args in worker.hear()] == handles[:2]
    worker.say(Type.READY, b"1")
    assert [args[0] for _, args in worker.hear()] == handles[2:]


@pytest.mark.parametrize("count", [b"", b"-1", b"many", b"1000000"])
def test_ready_takes_a_number(node: Node, count: bytes) -> None:
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
def test_options_of_register_that_cannot_be_right_are_refused(node: Node, text: bytes) -> None:
    worker = node.connect(extended=True)
    name, args = worker.ask(Type.REGISTER, F, text)
    assert (name, args[0]) == ("ERROR", "INVALID_ARGUMENTS")
    assert F not in node.service.dispatch.queues or not node.service.dispatch.queues[F].workers


def test_no_limit_is_asked_for_by_leaving_it_out(node: Node) -> None:
    """In CAN_DO_TIMEOUT alone 0 means none, as in Gearman."""
    peer = node.connect(extended=True)
    for kind, *args in ((Type.SUBMIT, F, b"", b'{"timeout": 0}', b""), (Type.REGISTER, F, b'{"timeout": 0}')):
        _, (_, message) = peer.ask(kind, *args)
        assert "timeout is 0, which would end each attempt at once: leave it out for none" in message
    peer.say(Type.CAN_DO_TIMEOUT, F, b"0")
    assert peer.hear() == []


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
def test_outcomes(node: Node, outcome: bytes, detail: dict[str, Any], state: str) -> None:
    client, worker = node.connect(extended=True), node.stream()
    handle = submit(client)
    job, token, _ = assigned(worker)
    settle(worker, job, token, outcome, **detail)
    assert worker.hear() == []
    assert worker.answer() == ("SETTLED", [handle, token.decode(), "recorded"])
    shown = show(node, handle)
    assert shown["state"] == state
    if detail.get("error"):
        assert shown["error"] == "Oops: it broke"


def test_an_outcome_that_is_none_changes_nothing(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream()
    submit(client)
    job, token, _ = assigned(worker)
    settle(worker, job, token, b"exploded")
    assert worker.hear()[0][1][0] == "INVALID_ARGUMENTS"
    settle(worker, job, token)
    assert worker.answer()[1][2] == "recorded"


@pytest.mark.parametrize("detail", [b"{", b'{"error": {"type": "\xff", "message": ""}}'])
def test_a_detail_that_cannot_be_read_fails_the_job(node: Node, detail: bytes) -> None:
    client, worker = node.connect(extended=True), node.stream()
    handle = submit(client, retry={})
    job, token, _ = assigned(worker)
    worker.say(Type.SETTLE, job, token, b"succeeded", detail, DONE)
    assert worker.answer()[1][2] == "recorded"
    assert "ProtocolError" in show(node, handle)["error"]
    worker.say(Type.SETTLE, job, token, b"succeeded", detail, DONE)
    assert worker.answer()[1][2] == "recorded", "sent again"


def test_a_settlement_sent_again_is_recorded_also_by_another_connection_and_after_a_restart(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream()
    submit(client)
    job, token, _ = assigned(worker)
    settle(worker, job, token)
    node.commit()
    again = node.stream()
    settle(again, job, token)
    assert again.answer()[1][2] == "recorded"
    settle(again, job, b"1.1.99")
    assert again.answer()[1][2] == "recorded", "the same attempt of the same lease"
    for wrong in (b"9.1.1", b"1.2.1", b"", b"x.y.z"):
        settle(again, job, wrong)
        assert again.answer()[1][2] == "stale"
    later = Node(node)
    last = later.stream()
    settle(last, job, token)
    assert last.answer()[1][2] == "recorded"
    for other in (b"other", b"", DONE + DONE):
        last.say(Type.SETTLE, job, token, b"succeeded", b"", other)
        assert last.answer()[1][2] == "stale", "that is not what was recorded"
    last.say(Type.SETTLE, b"nonsense", token, b"succeeded", b"", b"other")
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
def test_a_cancelled_job_says_why_also_where_its_worker_was_asked(
    node: Node, outcome: bytes, params: dict[str, str], message: str
) -> None:
    client, worker = node.connect(extended=True), node.stream()
    handle = client.background()
    node.commit()
    ((_, (_, token, *_)),) = worker.hear()
    assert client.call("jobs.cancel", handle=handle, **params)["state"] == "running"
    assert worker.hear() == [("STOP", [handle, token, "cancelled"])]
    worker.say(Type.SETTLE, handle.encode(), token.encode(), outcome, b"", b"")
    node.commit()
    assert client.call("jobs.show", handle=handle)["error"] == f"Cancelled: {message}"


def test_a_settlement_above_the_largest_packet_fails_its_job_for_good(node: Node) -> None:
    object.__setattr__(node.face.settings, "max_packet", 1000)
    client, worker = node.connect(extended=True), node.stream(retry={"max_attempts": 5})
    handle = client.background()
    node.commit()
    ((_, (_, token, *_)),) = worker.hear()
    said = (Type.SETTLE, handle.encode(), token.encode(), b"succeeded", b"", b"x" * 2000)
    assert worker.ask(*said) == ("SETTLED", [handle, token, "recorded"])
    shown = client.call("jobs.show", handle=handle)
    assert shown["state"] == "failed"
    assert shown["error"].startswith("ResultTooLarge: A body of 20")
    assert worker.ask(*said) == ("SETTLED", [handle, token, "recorded"]), "sent again"
    assert worker.ask(Type.SETTLE, handle.encode(), b"1.9.9", *said[3:]) == ("SETTLED", [handle, "1.9.9", "stale"])


def test_a_settlement_too_large_to_be_dropped_is_answered_before_the_connection_ends(node: Node) -> None:
    """Or its worker would send it again on each new connection, for ever."""
    object.__setattr__(node.face.settings, "max_packet", 1000)
    client, worker = node.connect(extended=True), node.stream(retry={"max_attempts": 5})
    handle = client.background()
    node.commit()
    ((_, (_, token, *_)),) = worker.hear()
    said = (Type.SETTLE, handle.encode(), token.encode(), b"succeeded", b"", b"x" * 17_000)
    for _ in ("first", "sent again"):
        worker.say(*said)
        node.commit()
        settled, error = worker.hear()
        assert settled == ("SETTLED", [handle, token, "recorded"])
        assert (error[0], error[1][0]) == ("ERROR", "ARGUMENT_TOO_LARGE")
        assert worker.closed
        worker = node.connect(extended=True)
    shown = client.call("jobs.show", handle=handle)
    assert (shown["state"], shown["attempt"]) == ("failed", 1)
    assert shown["error"].startswith("ResultTooLarge: A body of 17")


def test_a_settlement_sent_again_while_the_first_is_on_its_way(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream()
    submit(client)
    job, token, _ = assigned(worker)
    settle(worker, job, token)
    again = node.stream()
    settle(again, job, token)
    node.fail()
    assert (worker.hear(), again.hear()) == ([], [])
    node.wait(1.0)
    assert worker.hear()[0][1][2] == "recorded"
    assert again.hear()[0][1][2] == "recorded"


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


def test_a_job_of_two_lost_workers_is_to_run_alone(node: Node) -> None:
    submit(node.connect(extended=True))
    for _ in range(2):
        worker = node.stream()
        node.commit()
        assert "alone" not in assigned(worker)[2]
        worker.leave()
    worker = node.stream()
    node.commit()
    assert assigned(worker)[2]["alone"] is True


def test_heartbeats_tell_what_to_stop_and_what_is_lost(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream(places=2)
    submit(client)
    one = assigned(worker)
    submit(client)
    two = assigned(worker)
    client.call("jobs.cancel", handle=one[0].decode())
    assert worker.hear() == [("STOP", [one[0].decode(), one[1].decode(), "cancelled"])]
    jobs = [[handle.decode(), token.decode()] for handle, token, _ in (one, two)]
    name, (text,) = worker.ask(Type.HEARTBEAT, json.dumps({"jobs": [*jobs, ["H:n:9", "1.1.1"]]}).encode())
    assert name == "BEATEN"
    assert json.loads(text) == {"stop": [jobs[0]], "lost": [["H:n:9", "1.1.1"]]}


@pytest.mark.parametrize("body", [b"", b"{}", b'{"jobs": [1]}', b"\xff", b'{"jobs": [["\xff", ""]]}'])
def test_a_heartbeat_that_cannot_be_read(node: Node, body: bytes) -> None:
    name, args = node.connect(extended=True).ask(Type.HEARTBEAT, body)
    assert (name, args[0]) == ("ERROR", "INVALID_ARGUMENTS")


def test_a_job_that_takes_too_long_is_stopped(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream()
    submit(client, timeout=2)
    job, token, _ = assigned(worker)
    node.wait(2.1)
    assert worker.hear() == [("STOP", [job.decode(), token.decode(), "timeout"])]
    settle(worker, job, token)
    assert worker.answer()[1][2] == "stale"
    settle(worker, job, token, b"failed")
    assert worker.answer()[1][2] == "stale", "it failed, but not as the worker says"


def test_a_worker_that_pauses_gets_nothing_until_it_is_ready_again(node: Node) -> None:
    client, worker = node.connect(extended=True), node.stream(F, G, places=5)
    assert worker.ask(Type.PAUSE) == ("PAUSED", [])
    handle = submit(client)
    assert worker.hear() == []
    worker.say(Type.READY, b"1")
    assert assigned(worker)[0].decode() == handle


def test_jobs_of_a_worker_that_forgets_their_function_go_to_others(node: Node) -> None:
    client, worker, other = node.connect(extended=True), node.stream(), node.stream()
    submit(client)
    assigned(worker)
    worker.say(Type.CANT_DO, F)
    node.commit()
    assert assigned(other)[2]["attempt"] == 2


def test_plain_and_extended_peers_share_their_jobs(node: Node) -> None:
    plain, worker = node.connect(), node.stream()
    _, (handle,) = plain.ask(Type.SUBMIT_JOB, F, b"", b"load")
    job, token, info = assigned(worker)
    assert info["attempt"] == 1
    settle(worker, job, token)
    assert plain.hear() == [("WORK_COMPLETE", [handle, "done"])]
    old = node.worker()
    worker.leave()
    client = node.connect(extended=True)
    handle = submit(client, wait=True)
    name, args = old.ask(Type.GRAB_JOB)
    assert (name, args[0]) == ("JOB_ASSIGN", handle)
    old.say(Type.WORK_FAIL, handle.encode())
    heard: Heard = client.answer()
    assert (heard[0], heard[1][:3]) == ("RESULT", [handle, "failed", "1"])


def test_a_client_that_asked_for_exceptions_hears_why_a_job_failed(node: Node) -> None:
    plain, worker = node.connect(), node.stream()
    plain.ask(Type.OPTION_REQ, b"exceptions")
    _, (handle,) = plain.ask(Type.SUBMIT_JOB, F, b"", b"load")
    job, token, _ = assigned(worker)
    settle(worker, job, token, b"failed", error={"type": "Oops", "message": "it broke"})
    assert plain.hear() == [("WORK_EXCEPTION", [handle, "Oops: it broke"])]


# ---- results that are not read ----


def large_result(node: Node, size: int) -> str:
    """Run a job for which nobody waits."""
    handle = submit(node.connect(extended=True))
    worker = node.stream()
    node.commit()
    name, token, _ = assigned(worker)
    worker.say(Type.SETTLE, name, token, b"succeeded", b"", b"r" * size)
    node.commit()
    worker.leave()
    return handle


def test_a_peer_that_does_not_read_has_no_more_looked_up_and_loses_nothing(node: Node) -> None:
    size = 300_000
    handles = [large_result(node, size) for _ in range(5)]
    object.__setattr__(node.face.settings, "unsent_bytes", size)
    client = node.connect(extended=True)
    client.wire.protocol.pause_writing()
    for handle in handles:
        client.say(Type.WAIT, handle.encode())
        node.commit()
    assert client.hear() == []
    outgoing = client.wire.peer.outgoing
    assert (len(node.service.lookups), outgoing.full) == (4, True)
    assert outgoing.unread < size + 200
    heard: list[str] = []
    for _ in range(20):
        client.wire.protocol.resume_writing()
        node.commit()
        node.wait(0)
        for name, args in client.hear():
            assert (name, args[1], len(args[4])) == ("RESULT", "succeeded", size)
            heard.append(args[0])
        client.wire.protocol.pause_writing()
    assert sorted(heard) == sorted(handles)
    assert not outgoing.full
    assert not len(node.service.lookups)


def test_peers_that_wait_for_one_job_share_its_result(node: Node) -> None:
    clients = [node.connect(extended=True) for _ in range(5)]
    for client in clients:
        client.wire.protocol.pause_writing()
    handle = submit(node.connect(extended=True)).encode()
    for client in clients:
        client.say(Type.WAIT, handle)
    node.commit()
    worker = node.stream()
    node.commit()
    name, token, _ = assigned(worker)
    worker.say(Type.SETTLE, name, token, b"succeeded", b"", b"r" * 300_000)
    node.commit()
    bodies = {id(data) for client in clients for data, _ in client.wire.peer.outgoing._queue if len(data) >= 300_000}  # noqa: SLF001 - that they share one object shows nowhere else
    assert len(bodies) == 1
    for client in clients:
        client.wire.protocol.resume_writing()
        ((said, args),) = client.hear()
        assert (said, args[4]) == ("RESULT", "r" * 300_000)
