"""Plain workers, packet by packet."""

from __future__ import annotations

import pytest

from mainspring.jobs.service import FUNCTIONS_AT_ONCE
from mainspring.wire.gearman_protocol import Type, request

from .a_face import F, G, Node

NOT_FOUND = ("ERROR", ["JOB_NOT_FOUND", "Job given in work result not found"])
NO_DATA_OF = ("ERROR", ["JOB_NOT_FOUND", "Job does not exist on server"])
NO_EXCEPTION_OF = ("ERROR", ["JOB_NOT_FOUND", "An exception was received for a job that does not exist"])


@pytest.mark.parametrize(
    ("grab", "kind", "rest"),
    [
        (Type.GRAB_JOB, "JOB_ASSIGN", ["f", "load"]),
        (Type.GRAB_JOB_UNIQ, "JOB_ASSIGN_UNIQ", ["f", "u", "load"]),
        (Type.GRAB_JOB_ALL, "JOB_ASSIGN_UNIQ", ["f", "u", "load"]),
    ],
)
def test_the_packet_of_an_assignment_depends_on_the_request(node: Node, grab: int, kind: str, rest: list[str]) -> None:
    worker, client = node.worker(), node.connect()
    handle = client.background(b"load", unique=b"u")
    assert worker.ask(grab) == (kind, [handle, *rest])


def test_the_assignment_of_a_job_contains_its_reducer(node: Node) -> None:
    worker, client = node.worker(), node.connect()
    _, (handle,) = client.ask(Type.SUBMIT_REDUCE_JOB_BACKGROUND, F, b"u", b"sum", b"", b"load")
    assert worker.ask(Type.GRAB_JOB_ALL) == ("JOB_ASSIGN_ALL", [handle, "f", "u", "sum", "load"])


def test_the_packet_of_a_late_assignment_depends_on_the_last_request(node: Node) -> None:
    node.connect().background(b"load", unique=b"u")
    worker = node.worker()
    worker.request(Type.GRAB_JOB_UNIQ)
    assert worker.received() == []
    node.commit()
    assert worker.received()[0][0] == "JOB_ASSIGN_UNIQ"


def test_a_grab_without_a_job_is_answered_with_no_job(node: Node) -> None:
    assert node.connect().ask(Type.GRAB_JOB) == ("NO_JOB", []), "a worker without functions"
    assert node.worker().ask(Type.GRAB_JOB) == ("NO_JOB", [])


def test_a_sleeping_worker_receives_only_noop(node: Node) -> None:
    worker, other, client = node.worker(), node.worker(), node.connect()
    for sleeper in (worker, other):
        sleeper.request(Type.PRE_SLEEP)
        assert sleeper.received() == []
    client.background(b"load")
    assert worker.received() == [("NOOP", [])]
    assert other.received() == []
    worker.request(Type.PRE_SLEEP)
    assert worker.received() == [("NOOP", [])], "a job is still queued"
    assert other.received() == []
    worker.leave()
    assert other.received() == [("NOOP", [])], "one of the workers has to wake"


def test_a_worker_that_goes_to_sleep_while_jobs_are_stored_is_woken(node: Node) -> None:
    node.connect().background(b"load")
    worker = node.worker()
    worker.request(Type.PRE_SLEEP)
    node.commit()
    assert worker.received() == [("NOOP", [])]


@pytest.mark.parametrize("waits", [False, True])
def test_a_job_is_assigned_before_pending_answers(node: Node, waits: bool) -> None:
    """Until these are complete, the job might be assigned to another worker."""
    worker, client = node.worker(), node.connect()
    client.request(Type.SUBMIT_JOB, F, b"", b"first")
    if waits:
        worker.request(Type.GRAB_JOB)
        worker.request(Type.WORK_COMPLETE, worker.received()[0][1][0].encode(), b"")
    worker.request(Type.SUBMIT_JOB_BG, b"other", b"", b"")
    worker.request(Type.GRAB_JOB)
    if waits:
        assert worker.received() == []
        client.request(Type.SUBMIT_JOB, F, b"", b"second")
    assert [name for name, _ in worker.received()] == ["JOB_ASSIGN"]
    node.commit()
    assert [name for name, _ in worker.received()] == ["JOB_CREATED"]


def test_a_client_receives_the_messages_of_the_worker(node: Node) -> None:
    worker, client = node.worker(), node.connect()
    _, (handle,) = client.ask(Type.SUBMIT_JOB, F, b"", b"load")
    job = handle.encode()
    worker.request(Type.GRAB_JOB)
    worker.request(Type.WORK_DATA, job, b"part\0x")
    worker.request(Type.WORK_WARNING, job, b"careful")
    worker.request(Type.WORK_STATUS, job, b"1", b"2")
    worker.request(Type.WORK_COMPLETE, job, b"done\0x")
    assert client.received() == [
        ("WORK_DATA", [handle, "part\0x"]),
        ("WORK_WARNING", [handle, "careful"]),
        ("WORK_STATUS", [handle, "1", "2"]),
        ("WORK_COMPLETE", [handle, "done\0x"]),
    ]
    assert worker.received() == [("JOB_ASSIGN", [handle, "f", "load"])]


@pytest.mark.parametrize(
    ("kind", "rest", "answer"),
    [
        (Type.WORK_COMPLETE, [b""], NOT_FOUND),
        (Type.WORK_FAIL, [], NOT_FOUND),
        (Type.WORK_EXCEPTION, [b"x"], NO_EXCEPTION_OF),
        (Type.WORK_DATA, [b""], NO_DATA_OF),
        (Type.WORK_WARNING, [b""], NO_DATA_OF),
        (Type.WORK_STATUS, [b"1", b"2"], NOT_FOUND),
    ],
)
def test_reports_of_other_workers_jobs_are_errors(
    node: Node, kind: int, rest: list[bytes], answer: tuple[str, list[str]]
) -> None:
    owner, client = node.worker(), node.connect()
    handle = client.background().encode()
    owner.ask(Type.GRAB_JOB)
    assert node.connect().ask(kind, handle, *rest) == answer
    assert node.worker().ask(kind, handle, *rest) == answer
    assert owner.wire.peer.worker_side.running(handle) is not None


def test_a_failure_after_an_exception_is_ignored_once(node: Node) -> None:
    worker, client = node.worker(), node.connect()
    client.request(Type.OPTION_REQ, b"exceptions")
    client.received()
    _, (handle,) = client.ask(Type.SUBMIT_JOB, F, b"", b"")
    worker.ask(Type.GRAB_JOB)
    worker.request(Type.WORK_EXCEPTION, handle.encode(), b"boom")
    worker.request(Type.WORK_FAIL, handle.encode())
    assert worker.received() == []
    assert client.received() == [("WORK_EXCEPTION", [handle, "boom"])]
    worker.request(Type.WORK_FAIL, handle.encode())
    assert worker.received() == [NOT_FOUND]


def test_a_client_without_the_exceptions_option_receives_a_failure(node: Node) -> None:
    worker, client = node.worker(), node.connect()
    _, (handle,) = client.ask(Type.SUBMIT_JOB, F, b"", b"")
    worker.ask(Type.GRAB_JOB)
    worker.request(Type.WORK_EXCEPTION, handle.encode(), b"boom")
    assert client.received() == [("WORK_FAIL", [handle])]


def test_reports_of_a_cancelled_job_are_ignored(node: Node) -> None:
    worker, client, tool = node.worker(), node.connect(), node.connect(extended=True)
    handle = client.background().encode()
    worker.ask(Type.GRAB_JOB)
    assert tool.call("jobs.cancel", handle=handle.decode())["state"] == "cancelled"
    worker.request(Type.WORK_STATUS, handle, b"1", b"2")
    worker.request(Type.WORK_COMPLETE, handle, b"")
    assert worker.received() == []


def test_a_result_too_large_for_the_store_is_a_failure(node: Node) -> None:
    object.__setattr__(node.face.settings, "max_value", 4)
    worker, client = node.worker(), node.connect()
    handle = client.background().encode()
    worker.ask(Type.GRAB_JOB)
    worker.request(Type.WORK_COMPLETE, handle, b"12345")
    node.commit()
    shown = node.connect(extended=True).call("jobs.show", handle=handle.decode())
    assert shown["state"] == "failed"
    assert "5 bytes" in shown["error"]


def test_the_functions_of_a_worker_have_a_limit(node: Node) -> None:
    object.__setattr__(node.face.settings, "functions", 2)
    worker, stream = node.worker(b"a", b"b"), node.stream(b"a", b"b")
    for peer, kind, rest in (
        (worker, Type.CAN_DO, ()),
        (worker, Type.CAN_DO_TIMEOUT, (b"1000",)),
        (stream, Type.REGISTER, (b"",)),
    ):
        assert peer.ask(kind, b"c", *rest)[1][0] == "TOO_MANY_FUNCTIONS"
        peer.request(kind, b"a", *rest)
        assert peer.received() == []
    assert b"c" not in node.service.dispatch.queues
    worker.request(Type.CANT_DO, b"a")
    worker.request(Type.CAN_DO, b"c")
    assert worker.received() == []


def test_a_result_above_the_largest_packet_is_a_failure(node: Node) -> None:
    """Otherwise the job would never end, because each attempt has the same result."""
    object.__setattr__(node.face.settings, "max_packet", 1000)
    worker, client = node.worker(), node.connect()
    handle = client.background().encode()
    worker.ask(Type.GRAB_JOB)
    worker.request(Type.WORK_COMPLETE, handle, b"x" * 2000)
    node.commit()
    assert worker.received() == []
    shown = node.connect(extended=True).call("jobs.show", handle=handle.decode())
    assert shown["state"] == "failed"
    assert shown["error"].startswith("ResultTooLarge: A body of 20")
    worker.request(Type.WORK_COMPLETE, handle, b"x" * 2000)
    assert worker.answer()[1][0] == "ARGUMENT_TOO_LARGE"


def test_a_result_too_large_to_skip_ends_its_job_and_then_the_connection(node: Node) -> None:
    object.__setattr__(node.face.settings, "max_packet", 1000)
    worker, client = node.worker(), node.connect()
    handle = client.background().encode()
    worker.ask(Type.GRAB_JOB)
    worker.request(Type.WORK_COMPLETE, handle, b"x" * 17_000)
    node.commit()
    assert [(name, args[0]) for name, args in worker.received()] == [("ERROR", "ARGUMENT_TOO_LARGE")]
    assert worker.closed
    shown = node.connect(extended=True).call("jobs.show", handle=handle.decode())
    assert shown["state"] == "failed"
    assert shown["error"].startswith("ResultTooLarge: A body of 17")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"0", None),
        (b"5", 1.0),
        (b"1000", 1.0),
        (b"2500", 2.5),
        (b" \t\n\v\f\r2500", 2.5),
        (b"+2500", 2.5),
        (b"-2500", None),
        (b"- 2500", None),
        (b"2500ms", 2.5),
        (b"2500.9", 2.5),
        (b"10s", 1.0),
        (b"0x10", None),
        (b"", None),
        (b"soon", None),
        (b"2500\0", 2.5),
        ((2500).to_bytes(4, "big"), None),
        (b"\xb2\xb3", None),
        (b"0" * 5000 + b"2500", 2.5),
        (b"9" * 5000, 999_999_999.999),
        (b"-" + b"9" * 5000, None),
    ],
)
def test_timeouts_are_read_as_gearmand_reads_them(node: Node, text: bytes, seconds: float | None) -> None:
    """They are milliseconds: at least a second, and at most the value that stands for any longer timeout."""
    worker = node.connect()
    worker.request(Type.CAN_DO_TIMEOUT, F, text)
    registered = worker.wire.peer.worker
    assert registered is not None
    (ability,) = registered.abilities.values()
    assert ability.timeout == seconds
    assert ability.requeue


def test_abilities_are_reset(node: Node) -> None:
    worker, client = node.worker(F, G), node.connect()
    client.background()
    worker.request(Type.RESET_ABILITIES)
    assert worker.ask(Type.GRAB_JOB) == ("NO_JOB", [])
    assert node.service.dispatch.queues[F].backlog == [0, 1, 0]
    assert not node.service.dispatch.queues[G].workers


def test_requests_after_the_reset_of_many_abilities_wait_for_it(node: Node) -> None:
    worker = node.worker(*(b"%d" % number for number in range(10 * FUNCTIONS_AT_ONCE)))
    worker.send(request(Type.RESET_ABILITIES) + request(Type.CAN_DO, b"3") + request(Type.GRAB_JOB))
    assert worker.received() == [], "the reset takes several steps"
    node.wait(1.0)
    assert worker.received() == [("NO_JOB", [])]
    assert [name for name, queue in node.service.dispatch.queues.items() if queue.workers] == [b"3"]


def test_requests_in_one_read_are_answered_like_single_ones(node: Node) -> None:
    client, worker = node.connect(), node.connect()
    client.send(b"".join(request(Type.SUBMIT_JOB, F, b"", b"%d" % number) for number in range(3)))
    handles = [args[0] for _, args in client.received()]
    worker.send(request(Type.CAN_DO, F) + request(Type.GRAB_JOB) * 2 + request(Type.PRE_SLEEP))
    assert worker.received() == [
        ("JOB_ASSIGN", [handles[0], "f", "0"]),
        ("JOB_ASSIGN", [handles[1], "f", "1"]),
        ("NOOP", []),
    ]


def test_a_worker_is_named_by_its_id_or_its_address(node: Node) -> None:
    worker = node.worker()
    registered = worker.wire.peer.worker
    assert registered is not None
    assert registered.connection.name() == "localhost"
    worker.request(Type.SET_CLIENT_ID, b"me\xff")
    assert registered.connection.name() == "me\\xff"
    worker.request(Type.SET_CLIENT_ID, b"")
    assert registered.connection.name() == "localhost"


def test_a_client_id_has_a_limit(node: Node) -> None:
    worker = node.worker()
    worker.request(Type.SET_CLIENT_ID, b"i" * 1024)
    assert worker.received() == []
    worker.request(Type.SET_CLIENT_ID, b"j" * 1025)
    ((name, (code, message)),) = worker.received()
    assert (name, code) == ("ERROR", "ARGUMENT_TOO_LARGE")
    assert "at most 1024 bytes, and this one has 1025" in message
    assert worker.wire.peer.client_id == b"i" * 1024


def test_the_numbers_of_a_progress_have_a_limit(node: Node) -> None:
    worker = node.worker()
    handle = node.connect().background().encode()
    worker.ask(Type.GRAB_JOB)
    worker.request(Type.WORK_STATUS, handle, b"1", b"2" * 64)
    assert worker.received() == []
    for numbers in ((b"1" * 65, b"2"), (b"1", b"2" * 65)):
        worker.request(Type.WORK_STATUS, handle, *numbers)
        ((name, (code, _)),) = worker.received()
        assert (name, code) == ("ERROR", "ARGUMENT_TOO_LARGE")
    (held,) = node.service.table.held.values()
    assert (held.numerator, held.denominator) == (b"1", b"2" * 64)
