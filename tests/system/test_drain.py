"""The shutdown of a server: running jobs end or are released, no job starts, and everything is on disk."""

from __future__ import annotations

import signal
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from tests.interop.packets import Kind, packet_of

from .servers import Server, assert_no_defect, eventually, run_to_end, serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def refuses(server: Server) -> bool:
    """Return whether the server refuses connections, which is the first step of a drain."""
    try:
        socket.create_connection(("127.0.0.1", server.port), 5).close()
    except (ConnectionRefusedError, ConnectionResetError):
        return True  # the port was closed while this connection was being accepted
    return False


def begin_drain(server: Server, number: signal.Signals = signal.SIGTERM) -> None:
    server.signal(number)
    eventually(lambda: refuses(server), "new connections are refused")


def assert_clean_exit(server: Server) -> None:
    assert server.wait() == 0
    assert_no_defect(server.log_text())


def test_running_jobs_may_end_within_the_drain_timeout(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path))
        client = stack.enter_context(server.extended())
        streaming = stack.enter_context(server.worker(b"streaming"))
        plain = stack.enter_context(server.peer())
        plain.can_do(b"plain")
        waited = client.submit_new(b"streaming", wait=True)
        stored = client.submit_new(b"plain")
        foreground = client.submit(b"plain", b"", b"fg")
        job = streaming.job()
        assert plain.grab_assigned()[0] == stored
        begin_drain(server)
        assert streaming.settle_as(job, b"succeeded", b"in time") == b"recorded"
        assert client.result().data == b"in time"
        plain.complete(stored, b"in time, too")
        assert_clean_exit(server)
        assert client.is_closed(), "the foreground job that no worker had ends with the server"
        assert foreground
    with serving(tmp_path) as server, server.extended() as client:
        assert client.outcome(waited).data == b"in time"
        assert client.outcome(stored).data == b"in time, too"


def test_no_job_starts_during_a_drain(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path))
        client = stack.enter_context(server.extended())
        streaming = stack.enter_context(server.worker(b"f"))
        plain = stack.enter_context(server.peer())
        plain.can_do(b"f")
        handles = [client.submit_new(b"f", b"%d" % number) for number in range(4)]
        job = streaming.job()
        assert plain.grab_assigned()[0] == handles[1]
        begin_drain(server)
        streaming.ready(5)
        streaming.assert_silent()
        plain.complete(handles[1])
        assert plain.grab() == packet_of(Kind.NO_JOB)
        plain.sleep()
        late = client.submit_new(b"f", b"late")  # accepted, and stored for the next start
        assert streaming.settle_as(job, b"succeeded") == b"recorded"
        assert_clean_exit(server)
    with serving(tmp_path) as server, server.worker(b"f", places=9) as worker:
        assert [worker.job().handle for _ in range(3)] == [*handles[2:], late]
        worker.assert_silent()


def test_jobs_that_do_not_end_in_time_are_released_without_counting(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path, "--grace", "300ms"))
        client = stack.enter_context(server.extended())
        streaming = stack.enter_context(server.worker(b"streaming"))
        plain = stack.enter_context(server.peer())
        plain.can_do(b"plain")
        for function in (b"streaming", b"plain"):
            client.submit_new(function, retry={"max_attempts": 1})
        streaming.job()
        plain.grab_assigned()
        server.signal(signal.SIGTERM)
        assert_clean_exit(server)
    with serving(tmp_path) as server, server.worker(b"streaming", b"plain", places=2) as worker:
        assert [worker.job().info["attempt"] for _ in range(2)] == [1, 1]


def test_usr1_waits_for_running_jobs_without_limit_and_term_ends_the_wait(tmp_path: Path) -> None:
    with serving(tmp_path, "--grace", "200ms") as server, server.extended() as client, server.worker(b"f") as worker:
        client.submit_new(b"f", wait=True)
        job = worker.job()
        begin_drain(server, signal.SIGUSR1)
        worker.socket.settimeout(0.6)  # three times the drain time-out of TERM
        with pytest.raises(TimeoutError):
            worker.next()
        worker.socket.settimeout(10)
        assert worker.settle_as(job, b"succeeded") == b"recorded"
        assert_clean_exit(server)
    with serving(tmp_path, "--grace", "200ms") as server, server.extended() as client, server.worker(b"f") as worker:
        client.submit_new(b"f")
        worker.job()
        begin_drain(server, signal.SIGUSR1)
        server.signal(signal.SIGTERM)
        assert_clean_exit(server)


@pytest.mark.parametrize("command", [b"shutdown", b"shutdown graceful"])
def test_the_shutdown_command_from_this_machine_stops_the_server(tmp_path: Path, command: bytes) -> None:
    with serving(tmp_path, "--grace", "200ms", "--allow-shutdown") as server:
        with server.peer() as administrator, server.extended() as client, server.worker(b"f") as worker:
            client.submit_new(b"f")
            job = worker.job()
            assert administrator.ask(command) == b"OK\r\n"
            eventually(lambda: refuses(server), "new connections are refused")
            if command == b"shutdown graceful":
                assert worker.settle_as(job, b"succeeded") == b"recorded"
        assert_clean_exit(server)


def test_the_shutdown_command_from_another_machine_is_refused(tmp_path: Path) -> None:
    own = own_address()
    if own is None:
        pytest.skip("this machine has no address but loopback")
    with serving(tmp_path, "--gearman", f"{own}:0", "--insecure", "--allow-shutdown") as server:
        with socket.create_connection((own, server.port), 5) as elsewhere:
            elsewhere.sendall(b"shutdown\n")
            assert elsewhere.recv(1000).startswith(b"ERR ")
            elsewhere.sendall(b"version\n")
            assert elsewhere.recv(1000).startswith(b"OK ")
        server.assert_healthy()


def own_address() -> str | None:
    """Return an address of this machine that is not loopback, None if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing, and only selects the source address
        except OSError:
            return None
        address: str = probe.getsockname()[0]
    return None if address.startswith("127.") else address


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_an_idle_server_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as server, server.worker(b"f"), server.extended() as client:
        client.submit_new(b"backlog")
        server.signal(number)
        assert_clean_exit(server)


def test_a_refused_start_explains_the_remedy(tmp_path: Path, refused_start: Callable[..., tuple[int, str]]) -> None:
    with serving(tmp_path) as server:
        code, log = refused_start("--gearman", f"127.0.0.1:{server.port}", store="memory://")
        assert (code, "something listens there already; stop it, or choose another port" in log) == (1, True), log
        code, log = refused_start("--gearman", "127.0.0.1:0")
        assert (code, f"is in use by another node (process {server.pid})" in log) == (1, True), log
        assert "--store" in log
    code, log = refused_start("--no-such-option")
    assert (code, "--no-such-option" in log) == (2, True), log
    code, log = refused_start("--gearman", "0.0.0.0:0")
    assert (code, "--insecure" in log) == (2, True), log


@pytest.fixture
def refused_start(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    def start(*options: str, store: str = "sqlite:///jobs.db") -> tuple[int, str]:
        code, log = run_to_end(tmp_path, *options, store=store)
        assert_no_defect(log)
        return code, log

    return start
