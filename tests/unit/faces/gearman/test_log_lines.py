"""Lines of running jobs: LOG, and the calls that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.simulation.life import LOG_RETENTION

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.features import Feature
from mainspring.job_logs.service import (
    BUFFER_BYTES,
    BUSY_BYTES,
    BUSY_PAUSE,
    OPERATION_BYTES,
    OPERATION_ROWS,
    PAUSE,
    QUIET_GROUPS,
    RETRY_PAUSE,
    SWEEP_INTERVAL,
    SweepLogs,
)
from mainspring.jobs.user_data import ArgumentRule, ArgumentRules
from mainspring.wire.gearman_protocol import Type

from .a_face import Node
from .test_extension import assigned, settle, submit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .a_face import Peer

INFO, ERROR = 1, 3
SWEPT_ROWS = SweepLogs(0).rows


def lines(number: int, text: str = "line", level: int = INFO) -> list[list[Any]]:
    return [[1_000_000, level, "a.b", f"{text} {n}", {"n": n}] for n in range(number)]


def send(worker: Peer, handle: bytes, token: bytes, some: Sequence[Any], first: int = 1) -> None:
    worker.request(Type.LOG, msgspec.msgpack.encode([[handle, token, first, some]]))


def read(node: Node, handle: bytes | str, **params: Any) -> Any:
    text = handle if isinstance(handle, str) else handle.decode()
    return node.connect(extended=True).call("jobs.logs", handle=text, **params)


def kept(node: Node, handle: bytes) -> list[Any]:
    """Return all lines of a job that are kept."""
    found: list[Any] = []
    params: dict[str, Any] = {"whole": True}
    while page := (answer := read(node, handle, **params))["items"]:
        found += page
        if answer["next"] is None:
            break
        params = {"cursor": answer["next"]}
    return found


def messages(node: Node, handle: bytes | str, **params: Any) -> list[str]:
    return [line["message"] for line in read(node, handle, **params)["items"]]


class Running:
    """A worker with a running job."""

    def __init__(self, node: Node, **options: Any) -> None:
        self.node = node
        self.peer = node.stream(**options)
        self.submit()

    def submit(self, **options: Any) -> None:
        submit(self.node.connect(extended=True), **options)
        self.node.commit()
        self.handle, self.token, _ = assigned(self.peer)

    def log(self, some: Sequence[Any], first: int = 1) -> None:
        send(self.peer, self.handle, self.token, some, first)
        self.node.wait(PAUSE)
        self.node.commit()


@pytest.fixture
def running(node: Node) -> Running:
    return Running(node)


def test_a_node_takes_logs_if_its_store_keeps_them(node: Node) -> None:
    assert node.connect(extended=True).call("worker.logs") == {"values": True, "streams": True}


def test_another_node_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryEngine, "lacks", frozenset({Feature.LOGS}))
    node = Node()
    peer = node.connect(extended=True)
    assert peer.call("jobs.logs", handle="H:n:1000000000001") == "usage"
    assert peer.call("worker.logs") == "usage"
    assert peer.ask(Type.LOG, b"\x90")[1][0] == "UNSUPPORTED"


def test_lines_are_shown_with_all_that_is_known(running: Running) -> None:
    running.log(lines(2))
    (line, _) = read(running.node, running.handle)["items"]
    assert line == {
        "attempt": 1,
        "number": 1,
        "at": "2023-11-14T22:13:20.000000Z",
        "level": "info",
        "logger": "a.b",
        "message": "line 0",
        "fields": {"n": 0},
    }


def test_lines_of_others_are_ignored(node: Node, running: Running) -> None:
    other = node.stream(b"g")
    send(other, running.handle, running.token, lines(1))
    send(running.peer, running.handle, b"1.1.wrong", lines(1))
    send(running.peer, b"H:n:1000000999999", running.token, lines(1))
    node.wait(1)
    assert messages(node, running.handle) == []
    running.log(lines(1))
    send(other, running.handle, running.token, lines(1, "foreign"), first=2)
    node.wait(1)
    assert messages(node, running.handle) == ["line 0"]


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91\x91\x01", msgspec.msgpack.encode([[b"h", b"t", 0, []]])])
def test_bytes_that_are_no_lines_are_refused(running: Running, body: bytes) -> None:
    answer, (code, _) = running.peer.ask(Type.LOG, body)
    assert (answer, code) == ("ERROR", "INVALID_ARGUMENTS")


def test_the_last_lines_may_come_after_a_timeout(node: Node) -> None:
    running = Running(node, timeout=5)
    running.log(lines(1, "first"))
    node.wait(6)
    assert running.peer.received()[0][0] == "STOP"
    running.log(lines(1, "last"), first=2)
    assert messages(node, running.handle) == ["first 0", "last 0"]


def test_fields_of_redacted_keys_are_not_stored() -> None:
    node = Node(arguments=ArgumentRules(redactions=[ArgumentRule("f", "card*")]))
    running = Running(node)
    running.log([[0, INFO, "", "m", {"card_number": 4711, "CARD": "x", "order": 7}]])
    (line,) = read(node, running.handle)["items"]
    assert line["fields"] == {"card_number": "[redacted]", "CARD": "[redacted]", "order": 7}


def test_each_attempt_has_its_own_lines(node: Node) -> None:
    running = Running(node, retry={"max_attempts": 2})
    running.log(lines(1, "first"))
    settle(running.peer, running.handle, running.token, b"failed")
    node.commit()
    running.peer.received()
    running.peer.request(Type.READY, b"1")
    node.wait(3)
    running.handle, running.token, _ = assigned(running.peer)
    running.log(lines(2, "second"))
    assert messages(node, running.handle) == ["first 0", "second 0", "second 1"]
    assert messages(node, running.handle, attempt=1) == ["first 0"]
    shown = read(node, running.handle, whole=True)["items"]
    assert [(line["attempt"], line["number"], line.get("missed")) for line in shown] == [
        (1, 1, None),
        (2, 1, None),
        (2, 2, None),
    ]


def test_levels_tails_and_pages(running: Running) -> None:
    node = running.node
    running.log([*lines(3), *lines(1, "bad", ERROR), *lines(3, "more")])
    assert messages(node, running.handle, level="warning") == ["bad 0"]
    assert messages(node, running.handle, tail=2) == ["more 1", "more 2"]
    assert messages(node, running.handle, tail=1, level="error") == ["bad 0"]
    page = read(node, running.handle, whole=True, limit=2)
    assert [line["number"] for line in page["items"]] == [1, 2]
    assert [line["number"] for line in read(node, running.handle, cursor=page["next"], limit=3)["items"]] == [3, 4, 5]
    assert read(node, running.handle, cursor=read(node, running.handle, tail=1)["next"])["items"] == []


def test_missing_lines_are_counted_where_they_are_missing(running: Running) -> None:
    running.log(lines(2), first=4)
    running.log(lines(1), first=10)
    shown = read(running.node, running.handle, whole=True)["items"]
    assert [(line["number"], line.get("missed")) for line in shown] == [(4, 3), (5, None), (10, 4)]
    page = read(running.node, running.handle, whole=True, limit=2)
    assert [line.get("missed") for line in read(running.node, running.handle, cursor=page["next"])["items"]] == [4]
    assert read(running.node, running.handle, tail=1)["items"][0].get("missed") is None, "the caller asked for no more"
    shown = read(running.node, running.handle, whole=True, level="info")["items"]
    assert all("missed" not in line for line in shown), "other levels are left out on request"


def test_of_a_long_log_the_middle_is_deleted(running: Running) -> None:
    node = running.node
    for first in range(1, 15_001, 500):
        running.log(lines(500), first=first)
        node.wait(PAUSE)
    collected = [(line["number"], line.get("missed")) for line in kept(node, running.handle)]
    assert collected[0] == (1, None)
    gaps = [entry for entry in collected if entry[1] is not None]
    assert len(gaps) == 1
    assert collected[-1] == (15_000, None)
    assert len(collected) + sum(missed or 0 for _, missed in collected) == 15_000
    assert len(collected) <= 10_000


@pytest.mark.parametrize(
    "params", [{"cursor": "x"}, {"cursor": "1.2"}, {"tail": 0}, {"limit": 1001}, {"level": "loud"}, {"wait": 31}]
)
def test_wrong_requests(running: Running, params: dict[str, Any]) -> None:
    assert read(running.node, running.handle, **params) == "usage"


def test_unknown_jobs(node: Node) -> None:
    assert read(node, "H:n:1000000999999") == "not_found"
    assert read(node, "nonsense") == "not_found"
    assert read(node, "H:n:1000000999999", whole=True) == "not_found"


def test_the_end_of_a_log(node: Node, running: Running) -> None:
    settle(running.peer, running.handle, running.token)
    node.commit()
    assert not read(node, running.handle)["ended"], "lines may be on their way to another node"
    node.wait(1.5)
    assert read(node, running.handle)["ended"]
    assert read(node, running.handle, whole=True)["ended"]


def test_the_end_of_a_log_that_was_written_here(node: Node, running: Running) -> None:
    running.log(lines(1))
    assert not read(node, running.handle)["ended"]
    send(running.peer, running.handle, running.token, lines(1), first=2)
    settle(running.peer, running.handle, running.token)
    node.commit()
    assert not read(node, running.handle)["ended"], "its last line is not written yet"
    node.wait(PAUSE)
    assert [line["number"] for line in read(node, running.handle)["items"]] == [1, 2]
    assert read(node, running.handle)["ended"]


def test_a_busy_node_writes_lines_less_often(node: Node, running: Running) -> None:
    client = node.connect(extended=True)

    def keep_busy() -> None:
        for number in range(2 * QUIET_GROUPS):
            submit(client, payload=b"%d" % number)

    running.log(lines(1))
    keep_busy()
    running.log(lines(1), first=2)
    assert len(messages(node, running.handle)) == 1
    node.wait(BUSY_PAUSE)
    assert len(messages(node, running.handle)) == 2
    node.wait(BUSY_PAUSE)
    running.log(lines(1), first=3)
    send(running.peer, running.handle, running.token, lines(1), first=4)
    keep_busy()
    node.wait(PAUSE)
    assert len(messages(node, running.handle)) == 3, "it was quiet when the line came"
    node.wait(BUSY_PAUSE)
    assert len(messages(node, running.handle)) == 4


def test_a_reader_waits_for_lines(node: Node, running: Running) -> None:
    running.log(lines(1))
    reader = node.connect(extended=True)
    cursor = read(node, running.handle)["next"]
    call = {"handle": running.handle.decode(), "cursor": cursor, "wait": 30}
    reader.request(Type.CALL, b"1", b"jobs.logs", msgspec.json.encode(call))
    node.commit()
    assert reader.received() == []
    running.log(lines(1, "next"), first=2)
    node.wait(PAUSE)
    ((name, args),) = reader.received()
    assert name == "ANSWER"
    assert [line["number"] for line in msgspec.json.decode(args[1])["items"]] == [2]


def test_a_wait_ends_with_its_time_or_with_the_job(node: Node, running: Running) -> None:
    call = {"handle": running.handle.decode(), "whole": True, "wait": 3}
    first, second = node.connect(extended=True), node.connect(extended=True)
    first.request(Type.CALL, b"1", b"jobs.logs", msgspec.json.encode(call))
    node.wait(3.1)
    node.wait(1)
    timed_out = msgspec.json.decode(first.received()[0][1][1])
    assert (timed_out["items"], timed_out["next"] is None, timed_out["ended"]) == ([], False, False)
    second.request(Type.CALL, b"1", b"jobs.logs", msgspec.json.encode({**call, "wait": 30}))
    settle(running.peer, running.handle, running.token)
    node.commit()
    node.wait(2.5)
    assert msgspec.json.decode(second.received()[0][1][1]) == {
        "items": [],
        "next": None,
        "searched_to": None,
        "ended": True,
    }


def test_lines_wait_while_the_store_fails(running: Running) -> None:
    node = running.node
    send(running.peer, running.handle, running.token, lines(1))
    node.life.run_due()
    node.fail()
    assert messages(node, running.handle) == []
    node.wait(RETRY_PAUSE)
    assert messages(node, running.handle) == ["line 0"]


def test_the_middle_is_deleted_also_after_the_store_has_failed(running: Running) -> None:
    node = running.node
    for first in range(1, 10_001, 500):
        running.log(lines(500), first=first)
        node.wait(PAUSE)
    send(running.peer, running.handle, running.token, lines(500), first=10_001)
    node.life.run_due()
    node.fail()
    node.wait(2 * RETRY_PAUSE)
    assert kept(node, running.handle)[-1]["number"] == 10_500
    assert len(kept(node, running.handle)) <= 10_000


def test_of_long_lines_one_mebibyte_is_kept(running: Running) -> None:
    long = [[0, INFO, "", "x" * 16_000, None]] * 20
    for first in range(1, 201, 20):
        running.log(long, first=first)
        running.node.wait(1)
    found = kept(running.node, running.handle)
    assert (found[0]["number"], found[-1]["number"]) == (1, 200)
    assert 0.9 * 2**20 < 16_000 * len(found) <= 2**20


def test_long_lines_are_written_in_small_steps(running: Running) -> None:
    send(running.peer, running.handle, running.token, [[0, INFO, "", "x" * 16_000, None]] * 30)
    running.node.wait(0)
    assert 16_000 * len(messages(running.node, running.handle)) <= OPERATION_BYTES + 16_000


def test_lines_wait_while_many_bytes_of_jobs_do(node: Node, running: Running) -> None:
    node.connect(extended=True).request(Type.SUBMIT, b"f", b"", b"", bytes(BUSY_BYTES + 1))
    send(running.peer, running.handle, running.token, lines(1))
    node.life.run_due()
    node.commit()
    assert messages(node, running.handle) == []
    node.wait(PAUSE)
    assert messages(node, running.handle) == ["line 0"]


def test_what_does_not_fit_into_memory_is_dropped_and_counted(running: Running) -> None:
    node = running.node
    assert node.life.logs is not None
    long = [[0, INFO, "", "x" * 10_000, None]] * 100
    for number in range(BUFFER_BYTES // 10**6 + 2):
        send(running.peer, running.handle, running.token, long, first=1 + 100 * number)
    assert 100 <= node.life.logs.dropped <= 200
    assert node.life.logs.lines == 100 * (BUFFER_BYTES // 10**6 + 2)


def test_lines_are_written_in_small_steps_with_pauses(running: Running) -> None:
    node = running.node
    for number in range(2 * OPERATION_ROWS):
        send(running.peer, running.handle, running.token, lines(1), first=1 + number)
    node.wait(0)
    node.commit()
    assert len(messages(node, running.handle, tail=1000)) == OPERATION_ROWS
    node.wait(PAUSE)
    assert len(messages(node, running.handle, tail=1000)) == 2 * OPERATION_ROWS


def test_old_lines_are_deleted(node: Node, running: Running) -> None:
    logs = node.life.logs
    assert logs is not None
    running.log(lines(1, "old"))
    node.clock.advance(LOG_RETENTION - 1)
    running.log(lines(1, "new"), first=2)
    node.clock.advance(SWEEP_INTERVAL)
    logs.check(node.clock.monotonic())
    node.commit()
    assert messages(node, running.handle) == ["new 0"]


def test_any_number_of_old_lines_is_deleted(node: Node, running: Running) -> None:
    logs = node.life.logs
    assert logs is not None
    for number in range(SWEPT_ROWS + 100):
        send(running.peer, running.handle, running.token, lines(1), first=1 + number)
    node.wait(1)
    assert len(messages(node, running.handle, tail=1000)) == SWEPT_ROWS + 100
    node.clock.advance(LOG_RETENTION + SWEEP_INTERVAL)
    logs.check(node.clock.monotonic())
    node.wait(1)
    assert messages(node, running.handle) == []


def test_deliveries_that_have_ended_are_forgotten(node: Node, running: Running) -> None:
    logs = node.life.logs
    assert logs is not None
    running.log(lines(1))
    node.wait(10)
    settle(running.peer, running.handle, running.token)
    node.commit()
    running.log(lines(1), first=2)
    logs.check(node.clock.monotonic())
    running.log(lines(1), first=3)
    node.wait(10)
    logs.check(node.clock.monotonic())
    running.log(lines(1), first=4)
    node.wait(1)
    assert [line["number"] for line in read(node, running.handle)["items"]] == [1, 2, 3]
