"""Peers that send garbage, nothing, or too much: other peers are served as before, and the server logs no defect."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.interop.packets import Kind, encode, packet_of

from .extension import ExtensionKind
from .honest import Honest
from .servers import SHORT_TIMEOUTS, Server, eventually, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MIB = 2**20


@pytest.fixture
def honest(healthy: Server) -> Iterator[Honest]:
    with Honest(healthy.peer(), healthy.peer()) as honest:
        yield honest
        honest.round_trip()


# ---- garbage ----

NUMBERS = [b"0", b"1", b"-1", b"1e9", b"9" * 18, b"9" * 40, b"9" * 5000, "٣".encode(), b"0x10", b" 1"]
HANDLES = [
    b"H:n1:1000000000001",
    b"H:n1:%b" % (b"9" * 18),
    b"H:n1:%b" % (b"9" * 40),
    b"H:n1:-1",
    b"H::",
    b"::",
    b"H:\xff:1",
]
NAMES = [b"f", b"g", b"", b"\xff\xfe", b"n" * 300, b"u" * 64, b"u" * 65, b"-", b"a\nb", b"%d%s", b"a b\t"]
EXTREMES: list[Any] = [
    0,
    -1,
    1e-300,
    1e300,
    2**63,
    2**64,
    10**30,
    True,
    None,
    "",
    "x",
    "1",
    [],
    {},
    "\ud7ff",
    "\x00",
    -0.5,
    3,
]
KEYS = [
    "priority", "wait", "delay", "run_at", "timeout", "heartbeat", "expires", "retry", "keep_unique", "max_attempts",
    "initial", "factor", "maximum", "jitter", "state", "function", "unique", "limit", "cursor", "handle", "reason",
    "error", "final", "type", "message", "traceback", "jobs",
]  # fmt: skip
WORDS = [
    b"succeeded", b"failed", b"released", b"snoozed", b"cancelled", b"mainspring/2", b"exceptions", b"jobs.list",
    b"jobs.show", b"jobs.cancel", b"jobs.retry", b"jobs.watch", b"node.status",
]  # fmt: skip
ADMIN_LINES = [
    b"status", b"workers", b"version", b"prioritystatus", b"show jobs", b"show unique jobs", b"getpid", b"verbose",
    b"cancel job H:n1:1", b"cancel job", b"maxqueue f 1 2 3", b"maxqueue f -1", b"maxqueue f " + b"9" * 5000, b"maxqueue",
    b"create function g", b"drop function g", b"drop function", b"\xff\xfe\xfd", b"x" * 9000, b"", b"\r",
    b"GET / HTTP/1.1", b"shutdown now please",
]  # fmt: skip
PACKET_TYPES = sorted({*Kind, *ExtensionKind, 0, 5, 24, 43, 999, 1008, 1020, 2**31, 2**32 - 1})

values: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(EXTREMES),
    lambda inner: st.dictionaries(st.sampled_from(KEYS), inner, max_size=4) | st.lists(inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from(KEYS), values, max_size=5).map(lambda value: json.dumps(value).encode())
arguments = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(HANDLES),
    st.sampled_from(NAMES),
    st.sampled_from(WORDS),
    objects,
    st.binary(max_size=40),
)
packets = st.builds(
    lambda kind, parts: encode(kind, *parts), st.sampled_from(PACKET_TYPES), st.lists(arguments, max_size=8)
)
headers = st.builds(
    lambda magic, kind, size, body: magic + struct.pack(">II", kind, size) + body,
    st.sampled_from([b"\0REQ", b"\0RES", b"\0REX", b"\0\0\0\0"]),
    st.sampled_from(PACKET_TYPES),
    st.sampled_from([0, 1, 11, 12, 8192, 8193, 64 * MIB, 64 * MIB + 1, 2**31, 2**32 - 1]),
    st.binary(max_size=60),
)
lines = st.builds(
    lambda line, end: line + end, st.sampled_from(ADMIN_LINES), st.sampled_from([b"\n", b"\r\n", b"\n\n"])
)
chunks = st.one_of(packets, packets, headers, lines, st.binary(max_size=60), packets.map(lambda data: data[:-1]))
conversations = st.tuples(st.booleans(), st.lists(chunks, min_size=1, max_size=12), st.integers(1, 2000))


def converse(server: Server, extended: bool, messages: list[bytes], cut: int) -> None:
    """Send messages on one connection, in pieces, and read until the server closes it."""
    data = (encode(Kind.OPTION_REQ, b"mainspring/2") if extended else b"") + b"".join(messages)
    with socket.create_connection(("127.0.0.1", server.port), 10) as peer, contextlib.suppress(OSError):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(data), cut):
            peer.sendall(data[start : start + cut])
            if start > 20 * cut:
                cut = len(data)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(65536):
            pass


def fuzz(server: Server, honest: Honest, examples: int, *, deterministic: bool) -> None:
    """Let peers send arbitrary data; after each, check that the others are still served."""

    @settings(
        max_examples=examples,
        derandomize=deterministic,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(conversations)
    def example(conversation: tuple[bool, list[bytes], int]) -> None:
        converse(server, *conversation)
        honest.round_trip()
        server.assert_healthy()

    example()


def test_garbage_disturbs_no_other_peer(healthy: Server, honest: Honest) -> None:
    fuzz(healthy, honest, 1000, deterministic=True)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_much_garbage_disturbs_no_other_peer(healthy: Server, honest: Honest) -> None:
    fuzz(healthy, honest, 20_000, deterministic=False)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_of_all_kinds_are_handled(healthy: Server, honest: Honest, number: bytes) -> None:
    packets = [
        encode(Kind.SUBMIT_JOB_EPOCH, b"numbers", b"", number, b""),
        encode(Kind.SUBMIT_JOB_SCHED, b"numbers", b"", number, b"", b"", b"", b"", b""),
        encode(Kind.CAN_DO_TIMEOUT, b"numbers", number),
        encode(ExtensionKind.READY, number),
        encode(ExtensionKind.WAIT, b"H:n1:" + number),
        encode(ExtensionKind.SETTLE, b"H:n1:" + number, number + b"." + number + b".1", b"succeeded", b"", b""),
        encode(ExtensionKind.CALL, number, b"jobs.list", b'{"cursor": "H:n1:%b"}' % number),
        encode(ExtensionKind.CALL, number, b"jobs.cancel", b'{"handle": "H:n1:%b"}' % number),
        encode(ExtensionKind.CALL, number, b"jobs.retry", b'{"handle": "H:n1:%b"}' % number),
        encode(Kind.GET_STATUS, b"H:n1:" + number),
        b"cancel job H:n1:" + number[:100] + b"\n",
        b"maxqueue numbers " + number + b"\n",
    ]
    for packet in packets:
        converse(healthy, extended=True, messages=[packet], cut=10_000)
        honest.round_trip()


def test_a_packet_type_that_crashes_other_servers_is_refused(healthy: Server, honest: Honest) -> None:
    with healthy.peer() as peer:
        peer.write(b"\0REQ\xff\xff\xff\xff\0\0\0\0")
        assert peer.is_refused()
    honest.round_trip()


@pytest.mark.parametrize("kind", [Kind.SUBMIT_JOB_BG, Kind.ECHO_REQ, Kind.WORK_COMPLETE])
def test_a_length_of_4_gib_is_answered_at_once_and_holds_no_memory(healthy: Server, honest: Honest, kind: Kind) -> None:
    before = healthy.rss()
    with healthy.peer() as peer:
        peer.write(b"\0REQ" + struct.pack(">II", kind, 2**32 - 1))
        if kind is Kind.WORK_COMPLETE:
            peer.write(b"H:nobody:1\0" + bytes(1024))  # the server reads the handle before it refuses the result
        code, message = peer.expect(Kind.ERROR)
        assert code == b"ARGUMENT_TOO_LARGE"
        assert b"4294967295" in message
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                peer.write(bytes(MIB))
    honest.round_trip()
    assert healthy.rss() - before < 16 * MIB


def test_a_body_over_the_limit_is_skipped_and_the_connection_stays_open(healthy: Server) -> None:
    before = healthy.rss()
    with healthy.peer() as peer:
        peer.write(b"\0REQ" + struct.pack(">II", Kind.SUBMIT_JOB_BG, 65 * MIB))
        assert peer.expect(Kind.ERROR)[0] == b"ARGUMENT_TOO_LARGE"
        for _ in range(65):
            peer.write(bytes(MIB))
        peer.sync()
    assert healthy.rss() - before < 16 * MIB


def test_a_job_that_the_store_cannot_hold_is_refused_by_its_header(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-packet", "4G") as server, server.peer() as peer:
        peer.write(b"\0REQ" + struct.pack(">II", Kind.SUBMIT_JOB_BG, 1_000_000_000))
        assert peer.expect(Kind.ERROR)[0] == b"ARGUMENT_TOO_LARGE"
        server.assert_healthy()


# ---- slowness ----


def test_a_peer_may_send_one_byte_at_a_time(healthy: Server, honest: Honest) -> None:
    function, payload = b"slow", b"p" * 50
    packets = [
        encode(Kind.OPTION_REQ, b"mainspring/2"),
        encode(ExtensionKind.SUBMIT, function, b"", b'{"wait": true}', payload),
        encode(ExtensionKind.REGISTER, function, b""),
        encode(ExtensionKind.READY, b"1"),
    ]
    with healthy.peer() as peer:
        for number, byte in enumerate(b"".join(packets)):
            peer.write(bytes([byte]))
            if number % 20 == 0:
                honest.round_trip()
        assert peer.next() == packet_of(Kind.OPTION_RES, b"mainspring/2")
        peer.expect(ExtensionKind.SUBMITTED)
        job = peer.job()
        assert job.payload == payload
        peer.settle(job, b"succeeded", b"slow result")
        assert {peer.next().kind, peer.next().kind} == {ExtensionKind.SETTLED, ExtensionKind.RESULT}


def test_the_server_stops_reading_from_a_peer_that_does_not_read(healthy: Server, honest: Honest) -> None:
    before = healthy.rss()
    with healthy.peer() as peer:
        peer.socket.settimeout(1.0)
        with pytest.raises(TimeoutError):
            peer.write(encode(Kind.ECHO_REQ, bytes(MIB)) * 300)
        honest.round_trip()
        assert healthy.rss() - before < 64 * MIB


def test_a_client_that_reads_its_answers_late_loses_nothing(healthy: Server, honest: Honest) -> None:
    before = healthy.rss()
    batch = encode(Kind.SUBMIT_JOB_BG, b"unread", b"", b"x" * 100) * 500
    with healthy.peer() as peer:
        for _ in range(20):
            peer.write(batch)
        honest.round_trip()
        handles = {peer.expect(Kind.JOB_CREATED)[0] for _ in range(20 * 500)}
        assert len(handles) == 20 * 500
    assert healthy.rss() - before < 64 * MIB


def test_a_client_that_is_faster_than_the_disk_is_paused_and_no_other(
    tmp_path: Path, require: Callable[[str], str]
) -> None:
    packet = encode(Kind.SUBMIT_JOB_BG, b"much", b"", bytes(65536))
    sent = 0
    with serving(tmp_path) as server, server.peer() as peer, Honest(server.peer(), server.peer()) as honest:
        honest.round_trip()
        with slow_disk(server, require("strace")):
            # Enough submissions that the engine's thread waits for the disk, and not the event loop.
            peer.write(encode(Kind.SUBMIT_JOB_BG, b"much", b"", b"") * 200)
            peer.socket.settimeout(1.0)
            with contextlib.suppress(TimeoutError):
                while sent < 1000:
                    peer.write(packet)
                    sent += 1
            assert sent * len(packet) < 32 * MIB, "8 MiB, and the sockets' buffers"
            honest.round_trip()
        peer.socket.settimeout(30.0)
        for _ in range(200 + sent):
            peer.expect(Kind.JOB_CREATED)
        server.assert_healthy()


@contextlib.contextmanager
def slow_disk(server: Server, strace: str) -> Iterator[None]:
    """Delay each sync of a running server by five seconds."""
    command = [
        strace,
        "-f",
        "-p",
        str(server.pid),
        "-o",
        str(server.directory / "trace"),
        "-e",
        "trace=fsync,fdatasync",
    ]
    command += ["-e", "inject=fsync,fdatasync:delay_enter=5000000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as tracer:
        assert tracer.stderr is not None
        try:
            messages = tracer.stderr.readline()
            assert b" attached" in messages, messages
            yield
        finally:
            tracer.terminate()


def test_progress_that_a_client_does_not_read_is_bounded(healthy: Server, honest: Honest) -> None:
    before = healthy.rss()
    with healthy.peer() as client, healthy.peer() as worker:
        worker.can_do(b"talkative")
        client.submit(b"talkative", b"", b"")
        handle = worker.grab_assigned()[0]
        worker.socket.settimeout(3.0)
        packet = encode(Kind.WORK_DATA, handle, bytes(MIB))
        with contextlib.suppress(TimeoutError):
            for _ in range(300):
                worker.write(packet)
        honest.round_trip()
        assert healthy.rss() - before < 200 * MIB


def test_a_watcher_that_does_not_read_receives_the_number_of_missed_events(healthy: Server, honest: Honest) -> None:
    before = healthy.rss()
    with healthy.extended() as watcher, healthy.extended() as client:
        watcher.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**17)
        watcher.call("jobs.watch", function="watched")
        packet = encode(ExtensionKind.SUBMIT, b"watched", b"", b"", b"")
        for _ in range(60):
            client.write(packet * 500)
            for _ in range(500):
                client.expect(ExtensionKind.SUBMITTED)
        honest.round_trip()
        assert healthy.rss() - before < 64 * MIB
        watcher.socket.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            while "missed" not in watcher.event():
                pass
        # All kept events have been read; the next event follows the number of dropped ones.
        client.request(b"watched")
        client.expect(ExtensionKind.SUBMITTED)
        assert watcher.event()["missed"] > 1
        assert watcher.event()["state"] == "pending"


# ---- silence ----


def test_half_a_packet_ends_after_a_while_and_a_sleeping_worker_does_not(tmp_path: Path) -> None:
    with serving(tmp_path, program=SHORT_TIMEOUTS) as server, server.peer() as sleeper:
        sleeper.can_do(b"f")
        sleeper.sleep()
        halves = [b"\0", b"\0REQ\0\0", encode(Kind.ECHO_REQ, b"hello")[:-1], b"statu"]
        start = time.monotonic()
        peers = [server.peer() for _ in halves]
        for peer, half in zip(peers, halves, strict=True):
            peer.write(half)
        for peer in peers:
            assert peer.is_refused()
            peer.close()
        assert time.monotonic() - start > 0.8
        with server.peer() as client:
            client.submit(b"f", b"", b"", Kind.SUBMIT_JOB_BG)
            assert sleeper.receive() == packet_of(Kind.NOOP)
        server.assert_healthy()


def test_an_idle_connection_ends_after_the_idle_timeout(tmp_path: Path) -> None:
    with serving(tmp_path, "--idle-timeout", "1s") as server, server.peer() as idle, server.worker(b"f") as worker:
        with server.extended() as client:
            client.submit_new(b"f")
        worker.job()
        assert idle.is_closed()
        worker.assert_silent()
        server.assert_healthy()


def test_more_connections_than_allowed_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-connections", "3") as server, contextlib.ExitStack() as stack:
        peers = [stack.enter_context(server.peer()) for _ in range(3)]
        for peer in peers:
            peer.sync()
        with server.peer() as more:
            assert more.is_refused()
        peers.pop().close()
        eventually(lambda: admitted(server), "there is a place again")
        for peer in peers:
            peer.sync()
        server.assert_healthy()


def admitted(server: Server) -> bool:
    with server.peer() as peer, contextlib.suppress(ConnectionError):
        peer.send(Kind.ECHO_REQ, b"hello")
        return peer.receive().kind is Kind.ECHO_RES
    return False


def test_connections_that_come_and_go_leave_nothing_behind(healthy: Server, honest: Honest) -> None:
    def churn(count: int) -> None:
        for number in range(count):
            with healthy.peer() as peer:
                if number % 5 == 0:
                    peer.write(encode(Kind.CAN_DO, b"churn") + encode(Kind.PRE_SLEEP))
                elif number % 5 == 1:
                    peer.write(encode(Kind.SUBMIT_JOB, b"nobody", b"", b"x" * 1000))
                elif number % 5 == 2:
                    peer.write(encode(Kind.ECHO_REQ, b"x")[: number % 13])
                elif number % 5 == 3:
                    peer.extend()
                    peer.write(encode(ExtensionKind.WAIT, b"H:n1:%d" % number))
                    peer.write(encode(ExtensionKind.CALL, b"", b"jobs.watch", b""))
                    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    churn(500)
    honest.round_trip()
    before = healthy.rss()
    churn(2500)
    honest.round_trip()
    client = honest.client
    eventually(lambda: len(client.table(b"workers")) == 2, "only the honest peers are connected")
    client.extend()
    status = client.call("node.status")
    assert (status["connections"], status["workers"]) == (2, 1)
    assert healthy.rss() - before < 8 * MIB
