"""A failing disk and a full disk under a server with clients and workers."""

from __future__ import annotations

import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import apsw
import pytest
from tests.interop.packets import Kind, Packet, encode, packet_of

from .disks import Filled, small_file_system
from .extension import ExtensionKind, ExtensionPeer
from .servers import assert_no_defect, eventually, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MIB = 2**20


# ---- a failing disk ----


@pytest.mark.parametrize("after", [1, 6, 17])
def test_a_failing_fsync_ends_the_server_and_loses_nothing_acknowledged(
    tmp_path: Path, require: Callable[[str], str], after: int
) -> None:
    with serving(tmp_path):
        pass  # the failure must not hit the creation of the store
    tracer = (
        *(
            require("strace"),
            "-f",
            "-qq",
            "--seccomp-bpf",
            "-o",
            str(tmp_path / "trace"),
            "-e",
            "trace=fsync,fdatasync",
        ),
        *("-e", f"inject=fsync,fdatasync:error=EIO:when={after + 4}+"),
    )
    acknowledged: set[bytes] = set()
    confirmed: set[bytes] = set()
    with serving(tmp_path, tracer=tracer) as server:
        with server.peer() as peer, suppress(ConnectionError):
            work_until_it_ends(peer, acknowledged, confirmed)
        assert server.wait() == 1
        log = server.log_text()
    assert f"the disk failed under {tmp_path / 'jobs.db'}" in log
    assert "start the node again" in log
    assert_no_defect(log)
    with serving(tmp_path) as server, server.extended() as peer:
        states = {handle: peer.show(handle)["state"] for handle in acknowledged}
    assert confirmed <= {handle for handle, state in states.items() if state == "succeeded"}
    assert len(acknowledged) >= after // 4


def work_until_it_ends(peer: ExtensionPeer, acknowledged: set[bytes], confirmed: set[bytes]) -> None:
    """Submit and complete jobs one by one, and record the server's promises."""
    peer.can_do(b"f")
    while True:
        peer.send(Kind.SUBMIT_JOB_BG, b"f", b"", b"payload")
        answer = peer.next()
        if answer.kind is Kind.ERROR:
            return
        acknowledged.add(answer.arguments[0])
        peer.send(Kind.GRAB_JOB)
        answer = peer.next()
        if answer.kind is Kind.NO_JOB:
            continue
        handle = answer.arguments[0]
        peer.write(encode(Kind.WORK_COMPLETE, handle, b"result") + encode(Kind.ECHO_REQ, handle))
        if peer.next() == Packet(Kind.ECHO_RES, (handle,)):
            confirmed.add(handle)


# ---- a full disk ----


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path) as mount:
        yield mount


def page(port: int, path: str) -> int:
    """Return the status of a monitoring page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.fixture
def filled(small_disk: Path, tmp_path: Path) -> Iterator[Filled]:
    with serving(tmp_path, "--http", "127.0.0.1:0", store=f"sqlite:///{small_disk / 'jobs.db'}") as server:
        yield Filled(server, small_disk)
        assert_no_defect(server.log_text())


def fill_with_jobs(filled: Filled, peer: ExtensionPeer) -> list[bytes]:
    """Fill the disk, submit until the store refuses a job, and return the handles of the accepted ones."""
    filled.fill()
    handles: list[bytes] = []
    for _ in range(100):
        peer.send(Kind.SUBMIT_JOB_BG, b"backlog", b"", b"x" * 4096)
        answer = peer.next()
        if answer.kind is Kind.ERROR:
            assert b"no space is left" in answer.arguments[1]
            return handles
        handles.append(answer.arguments[0])
    raise AssertionError("a full disk accepted 100 jobs")


def test_on_a_full_disk_submits_are_refused_and_the_server_keeps_running(filled: Filled) -> None:
    with filled.server.extended() as peer:
        kept = peer.submit_new(b"backlog", b"kept")
        handles = [kept, *fill_with_jobs(filled, peer)]
        batch = [encode(Kind.SUBMIT_JOB_BG, b"backlog", b"", b"x" * 4096)] * 3
        batch += [encode(ExtensionKind.SUBMIT, b"backlog", b"", b"", b"x" * 4096)] * 3
        peer.write(b"".join(batch))
        assert [peer.next().kind for _ in batch] == [Kind.ERROR] * 6
        assert (page(filled.server.http, "/readyz"), page(filled.server.http, "/healthz")) == (503, 200)
        assert filled.server.log_text().count("the store refused a group") == 1
        with filled.server.worker(b"quick", places=1) as worker:
            foreground = peer.submit(b"quick", b"", b"needs no disk")
            assert worker.settle_as(worker.job(), b"succeeded", b"done") == b"recorded"
            assert peer.receive() == packet_of(Kind.WORK_COMPLETE, foreground, b"done")
        filled.free()
        eventually(lambda: page(filled.server.http, "/readyz") == 200, "ready again, without any submission")
        handles.append(peer.submit_new(b"backlog", b"after"))
        with filled.server.worker(b"backlog", places=len(handles) + 1) as worker:
            assert [worker.job().handle for _ in handles] == handles
            worker.assert_silent()
        filled.server.assert_healthy()


def test_on_a_full_disk_completions_are_kept_until_there_is_space(filled: Filled) -> None:
    server = filled.server
    with ExitStack() as stack:
        client, plain = (stack.enter_context(server.extended()) for _ in range(2))
        plain.can_do(b"plain")
        streaming = stack.enter_context(server.worker(b"streaming"))
        first = client.submit_new(b"plain", wait=True)
        second = client.submit_new(b"streaming", wait=True)
        assert plain.grab_assigned()[0] == first
        job = streaming.job()
        fill_with_jobs(filled, client)
        plain.send(Kind.WORK_COMPLETE, first, b"plain result" * 400)
        plain.send(Kind.ECHO_REQ, b"on disk?")
        streaming.settle(job, b"succeeded", b"streaming result" * 400)
        for peer in (plain, streaming, client):
            peer.socket.settimeout(0.5)
            with pytest.raises(TimeoutError):
                peer.next()
            peer.socket.settimeout(10)
        filled.free()
        assert plain.receive() == packet_of(Kind.ECHO_RES, b"on disk?")
        assert streaming.verdict(job) == b"recorded"
        results = [client.result(), client.result()]
        assert {result.handle: result.data for result in results} == {
            first: b"plain result" * 400,
            second: b"streaming result" * 400,
        }
        server.assert_healthy()


def test_a_kill_on_a_full_disk_loses_no_accepted_job(filled: Filled, small_disk: Path, tmp_path: Path) -> None:
    with filled.server.extended() as peer:
        handles = [peer.submit_new(b"backlog", b"%d" % number) for number in range(5)]
        handles += fill_with_jobs(filled, peer)
    filled.server.kill()
    filled.free()
    with serving(tmp_path, store=f"sqlite:///{small_disk / 'jobs.db'}") as server:
        with server.worker(b"backlog", places=len(handles) + 1) as worker:
            assert [worker.job().handle for _ in handles] == handles
            worker.assert_silent()
        server.assert_healthy()


# ---- a store that another program has locked ----


def test_a_program_that_locks_the_store_delays_only_writes(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--http", "127.0.0.1:0") as server,
        server.extended() as client,
        server.extended() as other,
    ):
        stored = client.submit_new(b"f")
        foreign = apsw.Connection(str(tmp_path / "jobs.db"))
        foreign.execute("BEGIN IMMEDIATE")
        client.send(Kind.SUBMIT_JOB_BG, b"f", b"", b"held")
        other.send(Kind.ECHO_REQ, b"ping")
        assert other.receive() == packet_of(Kind.ECHO_RES, b"ping")
        assert other.show(stored)["state"] == "pending"
        assert [job["handle"] for job in other.call("jobs.list")["items"]] == [stored.decode()]
        other.write(b"status\n")
        assert other.line().startswith(b"f\t2\t")
        assert other.line() == b".\n"
        assert [page(server.http, path) for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3
        foreign.execute("ROLLBACK")
        foreign.close()
        assert (held := client.expect(Kind.JOB_CREATED)[0])
        assert [job["handle"] for job in other.call("jobs.list")["items"]] == [held.decode(), stored.decode()]
        server.assert_healthy()
