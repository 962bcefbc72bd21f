"""Plain clients, packet by packet."""

from __future__ import annotations

import pytest

from mainspring.errors import StoreBrokenError
from mainspring.jobs.model import State
from mainspring.wire.gearman_protocol import Type, request

from .a_face import F, Node, Peer


def state(node: Node, handle: str) -> str:
    shown = node.connect(extended=True).call("jobs.show", handle=handle)
    return f"{shown['priority']} {shown['state']}"


@pytest.mark.parametrize(
    ("kind", "priority"),
    [
        (Type.SUBMIT_JOB_BG, "normal"),
        (Type.SUBMIT_JOB_HIGH_BG, "high"),
        (Type.SUBMIT_JOB_LOW_BG, "low"),
        (Type.SUBMIT_JOB, "normal"),
        (Type.SUBMIT_JOB_HIGH, "high"),
        (Type.SUBMIT_JOB_LOW, "low"),
    ],
)
def test_jobs_are_submitted_with_their_priority(node: Node, kind: int, priority: str) -> None:
    name, (handle,) = node.connect().ask(kind, F, b"", b"load")
    assert name == "JOB_CREATED"
    assert handle.startswith("H:n:")
    assert state(node, handle) == f"{priority} pending"


def test_background_jobs_are_acknowledged_after_the_commit(node: Node) -> None:
    client = node.connect()
    client.request(Type.SUBMIT_JOB_BG, F, b"", b"load")
    assert client.received() == []
    node.commit()
    ((name, _),) = client.received()
    assert name == "JOB_CREATED"


def test_answers_come_in_the_order_of_the_requests(node: Node) -> None:
    client = node.connect()
    stored = client.background(unique=b"u")
    client.send(
        request(Type.SUBMIT_JOB_BG, F, b"", b"")
        + request(Type.SUBMIT_JOB, F, b"v", b"")
        + request(Type.SUBMIT_JOB_BG, b"", b"", b"")
        + request(Type.SUBMIT_JOB_BG, F, b"u", b"")
        + request(Type.ECHO_REQ, b"echo")
        + request(Type.SUBMIT_JOB_BG, F, b"x" * 65, b"")
        + request(Type.SUBMIT_JOB, F, b"", b"")
        + request(Type.GET_STATUS, b"nonsense")
    )
    node.commit()
    packets = client.received()
    assert [name if name != "ERROR" else args[0] for name, args in packets] == [
        "JOB_CREATED",
        "JOB_CREATED",
        "INVALID_FUNCTION_NAME",
        "JOB_CREATED",
        "ECHO_RES",
        "ARGUMENT_TOO_LARGE",
        "JOB_CREATED",
        "STATUS_RES",
    ]
    assert packets[3] == ("JOB_CREATED", [stored])


@pytest.mark.parametrize("kind", [Type.SUBMIT_JOB, Type.SUBMIT_JOB_BG, Type.SUBMIT_JOB_HIGH_BG])
def test_a_payload_too_large_for_the_store_is_refused_alone(node: Node, kind: Type) -> None:
    object.__setattr__(node.face.settings, "max_value", 4)
    client = node.connect()
    client.send(request(kind, F, b"", b"1234") + request(kind, F, b"", b"12345") + request(kind, F, b"", b""))
    node.commit()
    created, (name, args), other = client.received()
    assert (created[0], name, other[0]) == ("JOB_CREATED", "ERROR", "JOB_CREATED")
    assert args[0] == "ARGUMENT_TOO_LARGE"
    assert "has 5 bytes, and this node's store takes 4: store larger data elsewhere" in args[1]


@pytest.mark.parametrize(
    ("kind", "rest"),
    [
        (Type.SUBMIT_JOB, [b"", b""]),
        (Type.SUBMIT_JOB_BG, [b"", b""]),
        (Type.SUBMIT_JOB_LOW_BG, [b"u", b""]),
        (Type.SUBMIT_JOB_EPOCH, [b"", b"1", b""]),
        (Type.SUBMIT_REDUCE_JOB_BACKGROUND, [b"", b"r", b"", b""]),
        (Type.SUBMIT, [b"", b"", b""]),
        (Type.CAN_DO, []),
        (Type.CAN_DO_TIMEOUT, [b"1000"]),
        (Type.REGISTER, [b""]),
    ],
)
def test_a_functions_name_has_at_most_512_bytes(node: Node, kind: Type, rest: list[bytes]) -> None:
    """The node keeps a queue for each function, so their names must not have 8 KiB each."""
    peer = node.connect(extended=True)
    for size in (512, 513, 512):
        peer.request(kind, b"x" * size, *rest)
    node.commit()
    packets = peer.received()
    assert [args for name, args in packets if name == "ERROR"] == [
        ["ARGUMENT_TOO_LARGE", "a function's name has at most 512 bytes"]
    ]
    assert [name for name, _ in packets if name != "ERROR"] in ([], ["JOB_CREATED"] * 2, ["SUBMITTED"] * 2)
    assert [name for name, _ in packets].index("ERROR") == len(packets) // 2, "in the order of the requests"
    assert list(node.service.dispatch.queues) == [b"x" * 512]


def test_the_extension_refuses_a_payload_too_large_for_the_store(node: Node) -> None:
    object.__setattr__(node.face.settings, "max_value", 4)
    name, args = node.connect(extended=True).ask(Type.SUBMIT, F, b"", b"", b"12345")
    assert (name, args[0]) == ("ERROR", "ARGUMENT_TOO_LARGE")


def test_a_failed_store_refuses_each_background_job(node: Node) -> None:
    client = node.connect()
    client.send(request(Type.SUBMIT_JOB_BG, F, b"", b"") * 2)
    node.fail()
    packets = client.received()
    assert [(name, args[0]) for name, args in packets] == [("ERROR", "QUEUE_ERROR")] * 2


def test_a_dash_stands_for_the_unique_of_the_payload(node: Node) -> None:
    client = node.connect()
    first = client.background(b"same", unique=b"-")
    assert client.background(b"same", unique=b"-") == first
    assert client.background(b"other", unique=b"-") != first
    worker = node.worker()
    assert worker.ask(Type.GRAB_JOB_UNIQ) == ("JOB_ASSIGN_UNIQ", [first, "f", "-", "same"])


def test_a_foreground_job_runs_after_earlier_background_jobs(node: Node) -> None:
    client, worker = node.connect(), node.worker()
    client.send(request(Type.SUBMIT_JOB_BG, F, b"", b"1") + request(Type.SUBMIT_JOB, F, b"", b"2"))
    node.commit()
    for payload in ("1", "2"):
        assert worker.ask(Type.GRAB_JOB)[1][2] == payload


def test_a_foreground_job_ends_with_its_client(node: Node) -> None:
    client, worker = node.connect(), node.worker()
    client.request(Type.SUBMIT_JOB, F, b"", b"1")
    client.leave()
    assert worker.ask(Type.GRAB_JOB) == ("NO_JOB", [])
    client = node.connect()
    client.send(request(Type.SUBMIT_JOB_BG, F, b"", b"2") + request(Type.SUBMIT_JOB, F, b"", b"3"))
    client.leave()
    node.commit()
    assert worker.ask(Type.GRAB_JOB)[1][2] == "2", "this job was grabbed before its client left"
    assert worker.ask(Type.GRAB_JOB) == ("NO_JOB", [])


def test_full_queues_refuse_new_jobs_and_allow_joining(node: Node) -> None:
    client = node.connect()
    stored = client.background(unique=b"u")
    assert client.text("maxqueue f 1") == "OK\r\n"
    for kind in (Type.SUBMIT_JOB, Type.SUBMIT_JOB_BG):
        name, args = client.ask(kind, F, b"", b"")
        assert (name, args[0]) == ("ERROR", "QUEUE_ERROR")
        assert client.ask(kind, F, b"u", b"") == ("JOB_CREATED", [stored])
        assert client.ask(kind, F, b"v", b"")[0] == "ERROR"
        assert client.ask(kind, b"g", b"", b"")[0] == "JOB_CREATED"
    assert client.text("maxqueue f 0") == "OK\r\n"
    assert client.ask(Type.SUBMIT_JOB, F, b"", b"")[0] == "JOB_CREATED"


# ---- scheduled jobs ----


def test_a_job_for_a_later_time_is_scheduled(node: Node) -> None:
    client, worker = node.connect(), node.worker()
    at = int(node.clock.wall()) + 10
    _, (handle,) = client.ask(Type.SUBMIT_JOB_EPOCH, F, b"", b"%d" % at, b"load")
    assert state(node, handle) == "normal scheduled"
    worker.request(Type.PRE_SLEEP)
    node.wait(10.1)
    assert worker.received() == [("NOOP", [])]
    _, (past,) = client.ask(Type.SUBMIT_JOB_EPOCH, F, b"", b"1", b"load")
    assert state(node, past) == "normal leased"


@pytest.mark.parametrize("epoch", [b"", b"soon", b"-1", b"253402300800", b"9" * 5000])
def test_a_time_that_is_no_number_of_seconds_is_refused(node: Node, epoch: bytes) -> None:
    name, args = node.connect().ask(Type.SUBMIT_JOB_EPOCH, F, b"", epoch, b"")
    assert (name, args[0]) == ("ERROR", "INVALID_ARGUMENTS")


def test_a_job_for_the_next_matching_time_is_scheduled(node: Node) -> None:
    _, (handle,) = node.connect().ask(Type.SUBMIT_JOB_SCHED, F, b"", b"30", b"12", b"", b"", b"", b"load")
    shown = node.connect(extended=True).call("jobs.show", handle=handle)
    assert shown["run_at"].endswith("T12:30:00.000000Z")


@pytest.mark.parametrize("minute", [b"61", b"x", b"\xff", b"1 2"])
def test_a_time_that_never_matches_is_refused(node: Node, minute: bytes) -> None:
    name, args = node.connect().ask(Type.SUBMIT_JOB_SCHED, F, b"", minute, b"", b"", b"", b"", b"")
    assert (name, args[0]) == ("ERROR", "INVALID_ARGUMENTS")


# ---- status ----


def test_the_status_follows_a_job_to_its_end(node: Node) -> None:
    client = node.connect()
    handle = client.background(unique=b"u")

    def status(peer: Peer = client) -> list[str]:
        name, args = peer.ask(Type.GET_STATUS, handle.encode())
        assert name == "STATUS_RES"
        assert args[0] == handle
        return args[1:]

    assert status() == ["1", "0", "0", "0"]
    worker = node.worker()
    worker.ask(Type.GRAB_JOB)
    worker.request(Type.WORK_STATUS, handle.encode(), b"3", b"4")
    assert status() == ["1", "1", "3", "4"]
    worker.request(Type.WORK_COMPLETE, handle.encode(), b"")
    assert status() == ["0", "0", "0", "0"]


def test_the_status_of_an_unknown_job_is_zeros(node: Node) -> None:
    client = node.connect()
    for handle in ("H:n:1000000999999", "nonsense", ""):
        assert client.ask(Type.GET_STATUS, handle.encode()) == ("STATUS_RES", [handle, "0", "0", "0", "0"])
    assert client.ask(Type.GET_STATUS_UNIQUE, b"u") == ("STATUS_RES_UNIQUE", ["u", "0", "0", "0", "0", "0"])


def test_the_status_by_unique_counts_waiting_clients(node: Node) -> None:
    client, other = node.connect(), node.connect()
    for peer in (client, other):
        peer.ask(Type.SUBMIT_JOB, F, b"u", b"")
    assert client.ask(Type.GET_STATUS_UNIQUE, b"u") == ("STATUS_RES_UNIQUE", ["u", "1", "0", "0", "0", "2"])
    client.background(unique=b"v")
    other.ask(Type.SUBMIT_JOB, F, b"v", b"")
    assert client.ask(Type.GET_STATUS_UNIQUE, b"v") == ("STATUS_RES_UNIQUE", ["v", "1", "0", "0", "0", "1"])


# ---- echo and options ----


def test_an_echo_is_answered_after_the_commit_of_earlier_requests(node: Node) -> None:
    client, worker = node.connect(), node.worker()
    handle = client.background()
    worker.ask(Type.GRAB_JOB)
    worker.send(request(Type.WORK_COMPLETE, handle.encode(), b"") + request(Type.ECHO_REQ, b"on disk?"))
    assert worker.received() == []
    assert worker.answer() == ("ECHO_RES", ["on disk?"])
    assert node.life.store.find(int(handle.split(":")[2])).state == State.SUCCEEDED  # type: ignore[union-attr]
    worker.request(Type.ECHO_REQ, b"again")
    assert worker.received() == [("ECHO_RES", ["again"])], "nothing is in progress"


def test_an_echo_waits_for_a_settlement_that_is_retried(node: Node) -> None:
    client, worker = node.connect(), node.worker()
    handle = client.background()
    worker.ask(Type.GRAB_JOB)
    worker.send(request(Type.WORK_COMPLETE, handle.encode(), b"") + request(Type.ECHO_REQ, b"on disk?"))
    node.fail()
    assert worker.received() == []
    node.life.store.full = True
    node.wait(1.0)
    assert worker.received() == []
    node.life.store.full = False
    node.wait(1.0)
    assert worker.received() == [("ECHO_RES", ["on disk?"])]
    assert node.life.store.find(int(handle.split(":")[2])).state == State.SUCCEEDED  # type: ignore[union-attr]


@pytest.mark.parametrize("at_once", [True, False])
def test_no_echo_is_answered_after_a_settlement_that_a_broken_disk_refused(
    node: Node, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    client, worker = node.connect(), node.worker()
    handle = client.background()
    worker.ask(Type.GRAB_JOB)
    broken = StoreBrokenError("the disk failed")
    monkeypatch.setattr(node.life.store, "commit", lambda _, committed, __: committed(broken))
    complete, echo = request(Type.WORK_COMPLETE, handle.encode(), b""), request(Type.ECHO_REQ, b"on disk?")
    if at_once:
        worker.send(complete + echo)
        node.commit()
    else:
        worker.send(complete)
        node.wait(1.0)
        worker.send(echo)
    assert worker.received() == []
    assert worker.closed


def test_known_options_are_set_and_others_refused(node: Node) -> None:
    client = node.connect()
    assert client.ask(Type.OPTION_REQ, b"exceptions") == ("OPTION_RES", ["exceptions"])
    name, args = client.ask(Type.OPTION_REQ, b"colours")
    assert (name, args[0]) == ("ERROR", "UNKNOWN_OPTION")


def test_pending_echoes_are_counted_by_their_bytes(node: Node) -> None:
    object.__setattr__(node.face.settings, "queued_bytes", 1000)
    worker = node.worker()
    node.connect().request(Type.SUBMIT_JOB_BG, F, b"", b"")  # it is not committed yet
    worker.request(Type.ECHO_REQ, b"x" * 900)
    assert not worker.wire.paused
    worker.request(Type.ECHO_REQ, b"y" * 900)
    assert worker.wire.paused
    node.commit()
    assert [args[0][:1] for _, args in worker.received()] == ["x", "y"]
    assert not worker.wire.paused
