"""The connection of a peer: bad bytes, half-closed ends, full stores, slow readers, silence."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from mainspring.faces.gearman.peer import ENDING_LIMIT
from mainspring.faces.gearman.submits import DROP_DELAY
from mainspring.jobs.held import Ability
from mainspring.wire.gearman_protocol import Type, request

from .a_face import F, G, Node, Peer, configure

if TYPE_CHECKING:
    from collections.abc import Iterator

# ---- bad bytes ----


def test_bad_bytes_are_answered_and_end_only_their_connection(node: Node) -> None:
    client, other = node.connect(), node.connect()
    client.send(request(Type.SUBMIT_JOB_BG, F, b"", b"") + b"\0REQ\xff\xff\xff\xff\0\0\0\0" + b"more")
    node.commit()
    assert [name for name, _ in client.received()] == ["JOB_CREATED", "ERROR"]
    assert client.closed
    assert other.ask(Type.ECHO_REQ, b"x") == ("ECHO_RES", ["x"])


def test_an_invalid_packet_of_known_length_is_skipped(node: Node) -> None:
    client = node.connect()
    assert client.ask(Type.CAN_DO_TIMEOUT, b"no timeout")[0] == "ERROR"
    assert client.ask(Type.ECHO_REQ, b"x") == ("ECHO_RES", ["x"])
    assert not client.closed


# ---- very many functions ----


def test_only_new_functions_are_refused_above_the_limit(node: Node) -> None:
    node.service.dispatch.most = 2
    client, worker = node.connect(), node.worker(F)
    client.send(b"".join(request(Type.SUBMIT_JOB_BG, name, b"", b"") for name in (G, b"new", F, b"more", G)))
    node.commit()
    packets = client.received()
    assert [name for name, _ in packets] == ["JOB_CREATED", "ERROR", "JOB_CREATED", "ERROR", "JOB_CREATED"]
    assert packets[1][1][0] == "TOO_MANY_FUNCTIONS"
    assert "2 functions" in packets[1][1][1]
    assert "--max-functions" in packets[1][1][1]
    for kind, args in (
        (Type.SUBMIT_JOB, (b"", b"")),
        (Type.SUBMIT_JOB_HIGH_BG, (b"u", b"")),
        (Type.SUBMIT_JOB_EPOCH, (b"", b"1", b"")),
        (Type.CAN_DO, ()),
        (Type.CAN_DO_TIMEOUT, (b"1000",)),
    ):
        assert client.ask(kind, b"new", *args)[1][0] == "TOO_MANY_FUNCTIONS"
    extended = node.connect(extended=True)
    assert extended.ask(Type.SUBMIT, b"new", b"", b"{}", b"")[1][0] == "TOO_MANY_FUNCTIONS"
    assert extended.ask(Type.REGISTER, b"new", b"")[1][0] == "TOO_MANY_FUNCTIONS"
    assert client.text("create function new").startswith("ERR TOO_MANY_FUNCTIONS this+server+has+2+functions")
    assert set(node.service.dispatch.queues) == {F, G}
    worker.request(Type.CAN_DO, G)
    assert worker.ask(Type.GRAB_JOB)[0] == "JOB_ASSIGN"


# ---- half-closed connections ----


def half_close(peer: Peer) -> None:
    assert peer.wire.protocol.eof_received()


@pytest.mark.parametrize("line", ["show jobs", "status"])
def test_a_half_closed_peer_gets_its_answers(node: Node, line: str) -> None:
    client = node.connect()
    client.background()
    client.send(line.encode() + b"\n")
    if line == "show jobs":
        half_close(client)
        assert not client.wire.over
    assert client.listed().endswith(".\n")
    if line == "status":
        half_close(client)
    assert client.closed


def test_a_half_closed_peer_gets_all_its_answers(node: Node) -> None:
    client = node.connect()
    client.send(request(Type.SUBMIT_JOB_BG, F, b"", b"") + b"show jobs\n")
    half_close(client)
    node.commit()
    assert [name for name, _ in client.received()] == ["JOB_CREATED"]
    assert len(client.listed().splitlines()) == 2
    assert client.closed


def test_a_half_closed_worker_loses_its_jobs(node: Node) -> None:
    worker, other, client = node.worker(), node.worker(), node.connect()
    handle = client.background()
    worker.ask(Type.GRAB_JOB)
    half_close(worker)
    assert worker.closed
    node.commit()
    assert other.ask(Type.GRAB_JOB)[1][0] == handle


@pytest.mark.parametrize("last", ["complete", "fatal"])
def test_a_worker_that_ends_with_a_pending_grab_gets_no_job(node: Node, last: str) -> None:
    """Its answer is written nevertheless; the worker ends at once, whatever its connection still waits for."""
    worker, other, client = node.worker(), node.worker(), node.connect()
    done, lost = client.background(), client.background()
    assert worker.ask(Type.GRAB_JOB)[1][0] == done
    assert worker.ask(Type.GRAB_JOB)[1][0] == lost
    reports = request(Type.WORK_COMPLETE, done.encode(), b"") + request(Type.GRAB_JOB)
    if last == "complete":
        worker.send(reports)
        half_close(worker)
    else:
        worker.send(reports + b"\0REQ\xff\xff\xff\xff\0\0\0\0")
    answers = [name for name, _ in worker.received()]
    assert answers == (["NO_JOB"] if last == "complete" else ["NO_JOB", "ERROR"])
    assert not node.service.dispatch.workers.keys() & {worker.wire.peer.worker}
    assert not worker.wire.peer.workers
    following = client.background()
    assert worker.closed
    node.commit()
    assert not worker.received()
    assert {other.ask(Type.GRAB_JOB)[1][0] for _ in range(2)} == {lost, following}
    for handle in (lost, following):
        other.request(Type.WORK_COMPLETE, handle.encode(), b"")
    node.commit()
    assert not node.service.dispatch.queues[F].total()


def test_a_half_closed_worker_of_the_extension_gets_its_answers_and_no_job(node: Node) -> None:
    worker, client = node.stream(places=2), node.connect()
    handle = client.background()
    assert [name for name, _ in worker.received()] == ["ASSIGN"]
    worker.request(Type.SUBMIT, G, b"", b"{}", b"")
    half_close(worker)
    assert not worker.wire.over
    assert not worker.wire.peer.workers
    node.commit()
    assert [name for name, _ in worker.received()] == ["SUBMITTED"]
    assert worker.closed
    following = client.background()
    node.commit()
    assert not worker.received()
    other = node.worker()
    assert [other.ask(Type.GRAB_JOB)[1][0] for _ in range(2)] == [handle, following]


def test_a_worker_that_has_gone_gets_nothing_whatever_is_still_done_for_it(node: Node) -> None:
    """A check of its rights or of its workflow may end only after its connection has."""
    plain, stream = node.worker(), node.stream(places=0)
    gone = plain.wire.peer.worker
    assert gone is not None
    (streaming,) = node.service.dispatch.workers.keys() - {gone}
    plain.leave()
    stream.leave()
    node.service.workers.register(gone, F, Ability())
    node.service.workers.register(streaming, F, Ability())
    assert not node.service.assigner.sleep(gone)
    handle = node.connect().background()
    assert not node.service.assigner.ask(gone)
    assert not node.service.assigner.sleep(gone)
    node.service.workers.ready(streaming, 1)
    assert not streaming.credit
    node.commit()
    assert not node.service.dispatch.workers
    assert node.worker().ask(Type.GRAB_JOB)[1][0] == handle


def test_a_half_closed_peer_gets_the_answers_to_its_calls(node: Node) -> None:
    client = node.connect(extended=True)
    client.request(Type.CALL, b"7", b"jobs.list", b"{}")
    half_close(client)
    assert not client.wire.over
    node.commit()
    assert [name for name, _ in client.received()] == ["ANSWER"]
    assert client.closed


@pytest.mark.parametrize("kind", ["client", "worker", "unread"])
def test_a_peer_that_has_sent_its_last_byte_is_cut_in_time(
    node: Node, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer may never come, and a peer may never read one."""
    peer = node.worker() if kind == "worker" else node.connect()
    cut: list[float] = []
    monkeypatch.setattr(peer.wire, "abort", lambda: cut.append(node.clock.monotonic()))
    if kind == "unread":
        monkeypatch.setattr(peer.wire, "close", lambda: None)
    else:
        peer.request(Type.SUBMIT_JOB_BG, F, b"", b"")  # no commit answers it
    half_close(peer)
    started = node.clock.monotonic()
    for _ in range(int(ENDING_LIMIT)):
        node.face.end_silent()
        assert not cut
        node.clock.advance(1)
    node.face.end_silent()
    assert cut == [started + ENDING_LIMIT]


@pytest.mark.parametrize("late", [True, False])
def test_jobs_of_a_client_that_gave_them_up_are_dropped_before_their_commit(node: Node, late: bool) -> None:
    """While the store is away, its group takes for ever; a young job of a program that does not read is stored."""
    client, other = node.connect(), node.connect()
    other.request(Type.SUBMIT_JOB_BG, F, b"", b"other")
    node.life.commits.flush()  # this group is under way
    client.request(Type.SUBMIT_JOB_BG, F, b"", b"given up")
    node.clock.advance(DROP_DELAY if late else DROP_DELAY / 2)
    client.wire.end()
    node.commit()
    worker = node.worker()
    payloads = [worker.ask(Type.GRAB_JOB)[1][2:] for _ in range(2)]
    assert payloads == ([["other"], []] if late else [["other"], ["given up"]])
    assert node.service.dispatch.queues[F].total() == (1 if late else 2)
    assert node.life.commits.bytes == 0


@pytest.mark.parametrize("ends", ["reset", "half"])
def test_the_reset_of_a_half_closed_peer_is_detected(node: Node, ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop does not report it, because it reads no more."""
    peer = node.connect()
    cut: list[bool] = []
    monkeypatch.setattr(peer.wire, "abort", lambda: cut.append(True))
    own, other = socket.socketpair()
    with own, other:
        peer.wire.peer.descriptor = own.fileno()
        peer.request(Type.SUBMIT_JOB_BG, F, b"", b"")
        half_close(peer)
        if ends == "half":
            other.shutdown(socket.SHUT_WR)
        else:
            other.close()
        node.face.end_silent()
    assert bool(cut) == (ends == "reset")


# ---- ends while reading is paused ----


@contextmanager
def paused(node: Node, peer: Peer) -> Iterator[socket.socket]:
    """Pause reading from a peer, as if its requests wait for ever; return the other end of its socket."""
    own, other = socket.socketpair()
    with own, other:
        peer.wire.peer.descriptor = own.fileno()
        peer.wire.peer.reading.pause("unanswered", paused=True)
        node.face.end_silent()
        assert peer.wire.paused
        yield other


def settlement(job: tuple[str, list[str]]) -> bytes:
    """Return the packet that reports the success of an assigned job."""
    _, (handle, token, *_) = job
    return request(Type.SETTLE, handle.encode(), token.encode(), b"succeeded", b"", b"early")


@pytest.mark.parametrize("how", ["half", "reset"])
def test_a_worker_whose_requests_wait_ends_at_once_and_its_reports_count(node: Node, how: str) -> None:
    """Requests behind them are answered in their turn, except those for jobs: it gets no more."""
    worker, client, other = node.stream(places=2), node.connect(extended=True), node.stream(places=0)
    handles = [client.background(), client.background()]
    jobs = worker.received()
    assert [name for name, _ in jobs] == ["ASSIGN"] * 2
    with paused(node, worker) as far:
        far.shutdown(socket.SHUT_WR) if how == "half" else far.close()
        node.face.end_silent()
        assert not worker.wire.paused
        worker.send(request(Type.SUBMIT, G, b"", b"{}", b"") + request(Type.READY, b"9"))
        worker.send(settlement(jobs[0]))
        node.commit()
        assert not worker.received()
        half_close(worker) if how == "half" else worker.leave()
        node.commit()
        other.request(Type.READY, b"9")
        node.commit()
        ((_, (handle, *_)),) = other.received()
        assert handle == handles[1]
        client.request(Type.WAIT, handles[0].encode())
        node.commit()
        assert client.received()[0][1][-1] == "early"
        if how == "reset":
            assert node.service.dispatch.queues.keys() == {F}
            return
        assert [(name, args[-1]) for name, args in worker.received()] == [("SETTLED", "recorded")]
        assert not worker.wire.over
        worker.wire.peer.reading.pause("unanswered", paused=False)
        node.wait(0)
        node.commit()
        assert [name for name, _ in worker.received()] == ["SUBMITTED"]
        assert worker.closed


def test_a_client_whose_requests_wait_is_read_in_its_turn(node: Node) -> None:
    """Its end is no reason to take more requests from it than others may have under way."""
    client = node.connect()
    with paused(node, client) as far:
        far.shutdown(socket.SHUT_WR)
        node.face.end_silent()
        assert client.wire.paused


def test_a_worker_that_ends_while_its_requests_wait_is_cut_in_time(node: Node) -> None:
    worker = node.stream()
    with paused(node, worker) as far:
        far.shutdown(socket.SHUT_WR)
        node.face.end_silent()
        worker.request(Type.SUBMIT, G, b"", b"{}", b"")
        half_close(worker)
        node.clock.advance(ENDING_LIMIT - 1)
        node.face.end_silent()
        assert not worker.closed
        node.clock.advance(1)
        node.face.end_silent()
        assert worker.closed
        worker.wire.peer.reading.pause("unanswered", paused=False)
        node.wait(0)
    assert node.service.dispatch.queues.keys() == {F}


# ---- pressure ----


def test_reading_pauses_while_too_many_jobs_of_a_peer_are_not_stored(node: Node) -> None:
    client = node.connect()
    client.send(request(Type.SUBMIT_JOB_BG, F, b"", b"") * 9)
    assert client.wire.paused
    node.commit()
    assert not client.wire.paused
    assert len(client.received()) == 9


def test_reading_pauses_while_too_many_bytes_of_a_peer_are_not_stored(node: Node) -> None:
    configure(node, queued_bytes=1000)
    client, other = node.connect(), node.connect()
    client.request(Type.SUBMIT_JOB_BG, F, b"", b"x" * 600)
    assert not client.wire.paused
    node.life.commits.flush()
    client.request(Type.SUBMIT_JOB_BG, F, b"", b"x" * 600)
    assert client.wire.paused
    assert not other.wire.paused
    node.life.store.finish()
    assert len(client.received()) == 1
    assert client.wire.paused, "more than half is left"
    node.commit()
    assert not client.wire.paused
    assert len(client.received()) == 1


def test_foreground_jobs_that_wait_for_the_store_count_too(node: Node) -> None:
    configure(node, queued_bytes=1000)
    client = node.connect()
    client.request(Type.SUBMIT_JOB_BG, F, b"", b"")
    client.request(Type.SUBMIT_JOB, F, b"", b"x" * 900)
    assert not client.wire.paused
    client.request(Type.SUBMIT_JOB, F, b"unique", b"x" * 900)
    assert client.wire.paused
    node.commit()
    assert not client.wire.paused
    assert len(client.received()) == 3
    client.request(Type.SUBMIT_JOB, F, b"", b"x" * 2000)
    assert not client.wire.paused, "no earlier job is pending, so it does not wait for the store"


def test_refused_jobs_no_longer_count(node: Node) -> None:
    configure(node, queued_bytes=1000)
    client = node.connect()
    client.request(Type.SUBMIT_JOB_BG, F, b"", b"x" * 2000)
    assert client.wire.paused
    node.fail()
    assert not client.wire.paused
    assert [name for name, _ in client.received()] == ["ERROR"]


def test_reading_pauses_for_current_and_new_peers_while_the_store_is_behind(node: Node) -> None:
    client, other = node.connect(), node.connect()
    client.request(Type.SUBMIT_JOB_BG, F, b"", b"x" * 30_000)
    late = node.connect()
    assert client.wire.paused
    assert other.wire.paused
    assert late.wire.paused
    node.commit()
    assert not any(peer.wire.paused for peer in (client, other, late))
    assert not node.connect().wire.paused


@pytest.mark.parametrize(
    ("question", "answered"),
    [
        (request(Type.WAIT, b"H:n1:999999999999999"), "RESULT"),
        (request(Type.SETTLE, b"H:n1:999999999999999", b"1.1.1", b"succeeded", b"", b""), "SETTLED"),
        (request(Type.GET_STATUS, b"H:n1:999999999999999"), "STATUS_RES"),
        (request(Type.GET_STATUS_UNIQUE, b"nobody"), "STATUS_RES_UNIQUE"),
    ],
)
def test_reading_pauses_while_too_many_requests_of_a_peer_are_pending(
    node: Node, question: bytes, answered: str
) -> None:
    configure(node, unanswered=8)
    client, other = node.connect(extended=True), node.connect()
    client.send(question * 20)
    assert client.wire.paused
    assert not other.wire.paused
    node.commit()
    packets = client.received()
    assert len(packets) == 9, "the rest of the read is deferred"
    for _ in range(2):
        node.wait(0)
    assert [name for name, _ in packets + client.received()] == [answered] * 20
    assert not client.wire.paused


@pytest.mark.parametrize("question", [request(Type.CALL, b"1", b"jobs.list", b""), b"show jobs\n"])
def test_a_list_of_jobs_counts_more_than_a_plain_request(node: Node, question: bytes) -> None:
    configure(node, unanswered=128)
    client = node.connect(extended=True)
    client.send(question * 2)
    assert not client.wire.paused
    client.send(question * 8)
    assert client.wire.paused
    node.wait(0)
    node.commit()
    assert len(client.received()) == 10
    assert not client.wire.paused


def test_answers_behind_a_pending_one_are_counted_with_their_bytes(node: Node) -> None:
    configure(node, queued_bytes=1000)
    client = node.connect()
    client.request(Type.SUBMIT_JOB_BG, F, b"", b"")
    client.request(Type.SUBMIT_JOB_BG, b"", b"", b"")
    assert not client.wire.paused
    for _ in range(20):
        client.request(Type.OPTION_REQ, b"o" * 90)
    assert client.wire.paused
    node.commit()
    assert not client.wire.paused


def test_the_rest_of_a_read_is_deferred_once_the_peer_has_too_much_to_read(node: Node) -> None:
    configure(node, unsent_bytes=0)
    client = node.connect()
    client.wire.protocol.pause_writing()
    client.send(b"version\n" * 3)
    assert client.received() == []
    assert client.wire.peer.outgoing.unread == len(b"OK 1.1.20\n"), "the answer to one of them"
    assert client.wire.paused
    client.wire.protocol.resume_writing()
    node.wait(0)
    assert len(client.received()) == 3
    assert not client.wire.paused


def test_a_long_read_of_one_peer_alternates_with_those_of_others(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(node, slice=1.0)
    client, other = node.connect(), node.connect()
    monkeypatch.setattr(node.face, "shut_down", lambda _: node.clock.advance(0.6))  # a slow request
    client.send(b"shutdown\n" * 5 + b"version\n")
    assert len(client.received()) == 2
    assert client.wire.paused
    assert other.text("version")
    node.wait(10)
    assert len(client.received()) == 4
    assert not client.wire.paused


def test_deferred_messages_wait_while_reading_is_paused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(node, slice=1.0)
    client = node.connect()
    monkeypatch.setattr(node.face, "shut_down", lambda _: node.clock.advance(2.0))
    client.send(b"shutdown\n" * 2 + b"version\n")
    client.wire.peer.reading.pause("store", paused=True)
    node.wait(10)
    assert len(client.received()) == 1
    client.wire.peer.reading.pause("store", paused=False)
    node.wait(10)
    assert len(client.received()) == 2
    assert not client.wire.paused


def test_deferred_messages_are_dropped_with_the_connection(node: Node) -> None:
    client = node.connect()
    client.wire.peer.reading.pause("store", paused=True)
    client.send(b"version\n" * 3)
    client.leave()
    client.wire.peer.reading.pause("store", paused=False)
    node.wait(0)
    assert len(client.received()) == 1


def test_a_planned_turn_does_nothing_after_the_connection(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(node, slice=1.0)
    client = node.connect()
    handled: list[object] = []

    def slow(how: object) -> None:
        handled.append(how)
        node.clock.advance(2.0)

    monkeypatch.setattr(node.face, "shut_down", slow)
    client.send(b"shutdown\n" * 3)
    client.leave()
    node.wait(10)
    assert len(handled) == 1


def test_new_messages_follow_deferred_ones(node: Node) -> None:
    """A TLS transport may deliver bytes that it decrypted before the pause."""
    client = node.connect()
    protocol = client.wire.protocol
    protocol.pause_writing()
    client.send(b"version\n" + request(Type.ECHO_REQ, b"one") + request(Type.ECHO_REQ, b"two"))
    protocol.data_received(request(Type.ECHO_REQ, b"three"))
    protocol.resume_writing()
    node.wait(0)
    assert [args for name, args in client.received() if name == "ECHO_RES"] == [["one"], ["two"], ["three"]]


def test_no_message_is_handled_after_one_that_ends_the_connection(node: Node) -> None:
    client = node.connect()
    client.wire.peer.worker_side.as_worker().refused = True
    client.send(request(Type.ECHO_REQ, b"x") + request(Type.SUBMIT_JOB_BG, F, b"", b""))
    assert client.closed
    assert F not in node.service.dispatch.queues


def test_reading_resumes_after_the_last_reason(node: Node) -> None:
    client = node.connect()
    protocol, peer = client.wire.protocol, client.wire.peer
    protocol.pause_writing()
    peer.reading.pause("store", paused=True)
    peer.reading.pause("store", paused=True)
    protocol.resume_writing()
    assert client.wire.paused
    peer.reading.pause("store", paused=False)
    assert not client.wire.paused
    protocol.resume_writing()
    assert not client.wire.paused


def test_a_peer_that_leaves_progress_unread_is_disconnected(node: Node) -> None:
    configure(node, unsent_bytes=100)
    worker, client = node.worker(), node.connect()
    _, (handle,) = client.ask(Type.SUBMIT_JOB, F, b"", b"")
    worker.ask(Type.GRAB_JOB)
    client.wire.unsent = 16 * 100 + 1
    worker.request(Type.WORK_DATA, handle.encode(), b"more")
    assert client.closed
    assert worker.received() == []
    worker.request(Type.WORK_COMPLETE, handle.encode(), b"")
    assert worker.received() == []


def test_connections_above_the_limit_are_refused(node: Node) -> None:
    configure(node, connections=2)
    first, second = node.connect(), node.connect()
    with capture_logs() as logged:
        for _ in range(3):
            third = node.connect()
            assert third.received()[0][1][0] == "TOO_MANY_CONNECTIONS"
            assert third.closed
    assert [one["event"] for one in logged] == ["connections are refused"], "logged once, not for each connection"
    assert not first.closed
    second.leave()
    assert node.connect().ask(Type.ECHO_REQ, b"x") == ("ECHO_RES", ["x"])


# ---- silence ----


def test_a_peer_that_stops_in_the_middle_of_a_packet_is_disconnected(node: Node) -> None:
    configure(node, packet_timeout=60.0)
    client, other = node.connect(), node.connect()
    client.send(request(Type.ECHO_REQ, b"x")[:-1])
    node.clock.advance(59.0)
    node.face.end_silent()
    assert not client.closed
    node.clock.advance(2.0)
    node.face.end_silent()
    assert client.closed
    assert not other.closed


def test_a_peer_whose_reading_the_server_paused_is_not_silent(node: Node) -> None:
    configure(node, packet_timeout=60.0, idle_timeout=60.0)
    client = node.connect()
    client.send(request(Type.ECHO_REQ, b"x")[:-1])
    client.wire.peer.reading.pause("store", paused=True)
    node.clock.advance(1000.0)
    node.face.end_silent()
    assert not client.closed
    client.wire.peer.reading.pause("store", paused=False)
    node.face.end_silent()
    assert not client.closed
    client.send(b"x")
    assert client.answer() == ("ECHO_RES", ["x"])


def test_a_peer_that_does_not_read_its_answers_may_be_silent(node: Node) -> None:
    configure(node, packet_timeout=60.0)
    client = node.connect()
    client.send(request(Type.ECHO_REQ, b"x")[:-1])
    client.wire.protocol.pause_writing()
    node.clock.advance(61.0)
    node.face.end_silent()
    assert client.closed


@pytest.mark.parametrize("who", ["nobody", "client", "worker", "sleeper"])
def test_idle_peers_are_disconnected_unless_they_wait_for_an_answer(node: Node, who: str) -> None:
    configure(node, idle_timeout=10.0)
    peer = node.connect()
    if who == "client":
        peer.ask(Type.SUBMIT_JOB, F, b"", b"")
    elif who != "nobody":
        peer.request(Type.CAN_DO, F)
        if who == "sleeper":
            peer.request(Type.PRE_SLEEP)
    node.clock.advance(11.0)
    node.face.end_silent()
    assert peer.closed == (who == "nobody")


# ---- the end ----


def test_answers_for_a_disconnected_peer_are_dropped(node: Node) -> None:
    client = node.connect()
    client.send(request(Type.SUBMIT_JOB_BG, F, b"", b"") + request(Type.SUBMIT_JOB, F, b"u", b"") + b"show jobs\n")
    client.leave()
    node.commit()
    assert client.received() == []
    assert node.face.peers.connected == {}
    assert len(node.service.listeners) == 0
    queue = node.service.dispatch.queues[F]
    assert (queue.live, queue.foreground) == (1, 0)


def test_closing_the_face_ends_all_connections(node: Node) -> None:
    peers = [node.connect() for _ in range(3)]
    node.face.close()
    assert all(peer.closed for peer in peers)
    assert node.face.peers.connected == {}
