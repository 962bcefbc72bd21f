"""TLS on the Gearman port: accepted and refused clients, and the isolation between them."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
import uvloop
from tests import commands
from tests.interop.packets import PACKET_TIMEOUT, REQUEST, RESPONSE, Kind, encode

from mainspring.client.aio import AsyncClient
from mainspring.client.blocking import Client
from mainspring.client.environment import Address
from mainspring.client.sockets import TLS_OPTIONS, TlsFiles
from mainspring.errors import ServerError

from .authority import EXPIRED_VALIDITY, Authority, Pair
from .extension import ExtensionPeer
from .honest import Honest
from .leaving import assert_a_worker_whose_calls_wait_keeps_no_job, assert_leaving_workers_keep_no_job
from .processes import command, environment, mainspring, node
from .servers import SHORT_TIMEOUTS, Server, eventually, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


ALERT = b"\x15"
"""The first byte of a TLS record that carries an alert."""


class Certificates:
    """The certificates of the tests."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory, "authority")
        self.stranger = Authority(directory, "stranger")
        self.server = self.authority.sign("server")
        self.client = self.authority.sign("client")
        self.expired = self.authority.sign("expired", EXPIRED_VALIDITY)
        self.forged = self.stranger.sign("forged")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory, require: Callable[[str], str]) -> Certificates:
    require("openssl")
    return Certificates(tmp_path_factory.mktemp("certificates"))


def client_context(authority: Authority, own: Pair | None = None) -> ssl.SSLContext:
    """Return a client's context that trusts an authority."""
    tls = ssl.create_default_context(cafile=str(authority.pair.certificate))
    if own is not None:
        tls.load_cert_chain(own.certificate, own.key)
    return tls


class TlsPeer(ExtensionPeer):
    """A peer that uses TLS."""

    def __init__(self, port: int, tls: ssl.SSLContext) -> None:
        super().__init__(port)
        try:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        except OSError:
            self.close()
            raise

    def certificate_number(self) -> str:
        """Return the serial number of the server's certificate."""
        assert isinstance(self.socket, ssl.SSLSocket)
        shown = self.socket.getpeercert()
        assert shown is not None
        return str(shown["serialNumber"])


def connect_honest(port: int, tls: ssl.SSLContext) -> Honest:
    """Return an honest client and worker over TLS."""
    return Honest(TlsPeer(port, tls), TlsPeer(port, tls))


@pytest.fixture
def mutual(certificates: Certificates, tmp_path: Path) -> Iterator[Server]:
    """Return a server that requires clients' certificates."""
    authority = ("--tls-client-ca", str(certificates.authority.pair.certificate))
    with serving(tmp_path, *certificates.server.options(), *authority, program=SHORT_TIMEOUTS) as server:
        yield server
        server.assert_healthy()


def test_with_only_a_servers_certificate_every_tls_client_may_connect(
    certificates: Certificates, tmp_path: Path
) -> None:
    with serving(tmp_path, *certificates.server.options()) as server, ExitStack() as stack:
        honest = stack.enter_context(connect_honest(server.port, client_context(certificates.authority)))
        honest.round_trip()
        with pytest.raises(ssl.SSLCertVerificationError):
            TlsPeer(server.port, client_context(certificates.stranger))
        old = client_context(certificates.authority)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(ssl.SSLError):
            TlsPeer(server.port, old)
        honest.round_trip()
        handles = [honest.client.submit(b"f", b"", bytes(300_000), Kind.SUBMIT_JOB_BG) for _ in range(3)]
        assert len(set(handles)) == 3
        server.assert_healthy()


def test_the_administration_protocol_and_the_ends_of_workers_work_over_tls(
    certificates: Certificates, tmp_path: Path
) -> None:
    with serving(tmp_path, *certificates.server.options()) as server:

        def connect() -> TlsPeer:
            return TlsPeer(server.port, client_context(certificates.authority))

        with connect() as peer:
            assert peer.ask(b"version").startswith(b"OK ")
            assert peer.table(b"status") == []
        assert_leaving_workers_keep_no_job(connect, b"leaving")
        assert_a_worker_whose_calls_wait_keeps_no_job(connect, b"waiting")
        server.assert_healthy()


def test_clients_must_show_a_valid_certificate(mutual: Server, certificates: Certificates) -> None:
    with ExitStack() as stack:
        honest = stack.enter_context(
            connect_honest(mutual.port, client_context(certificates.authority, certificates.client))
        )
        honest.round_trip()
        for own in (None, certificates.expired, certificates.forged):
            assert_refused(mutual.port, client_context(certificates.authority, own))
            honest.round_trip()
        assert b"honest" in b"".join(honest.client.table(b"workers"))
        # The server has ended the refused connections: only the client and the worker are left.
        assert len(honest.client.table(b"workers")) == 2


def assert_refused(port: int, tls: ssl.SSLContext) -> None:
    """Assert that the server refuses a client. In TLS 1.3 the client detects that only at its first read."""
    with pytest.raises((ssl.SSLError, ConnectionError)):
        greet(port, tls)


def greet(port: int, tls: ssl.SSLContext) -> None:
    """Exchange one packet."""
    with TlsPeer(port, tls) as peer:
        peer.send(Kind.ECHO_REQ, b"hello")
        peer.receive()


@pytest.mark.parametrize(
    "first",
    [
        encode(Kind.ECHO_REQ, b"plaintext"),
        b"status\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + bytes(100),
        bytes(10_000),
    ],
)
def test_plaintext_on_a_tls_port_is_refused(mutual: Server, certificates: Certificates, first: bytes) -> None:
    with ExitStack() as stack:
        honest = stack.enter_context(
            connect_honest(mutual.port, client_context(certificates.authority, certificates.client))
        )
        with socket.create_connection(("127.0.0.1", mutual.port), PACKET_TIMEOUT) as plain:
            received = b""
            with suppress(ConnectionError):
                plain.sendall(first)
                while data := plain.recv(1000):
                    received += data
            explained = encode(Kind.ERROR, b"TLS_REQUIRED", b"this port speaks TLS", magic=RESPONSE)
            assert received == explained or received[:1] in {b"", ALERT}
            if first.startswith(REQUEST):
                assert received == explained
        honest.round_trip()


NO_CERTIFICATE = "the server requires a client certificate: give one with --tls-cert and --tls-key"
WRONG_CERTIFICATE = "does not trust the authority of this client's certificate: .* trusts with --tls-cert and --tls-key"
EXPIRED_CERTIFICATE = "this client's certificate has expired: give a new one with --tls-cert and --tls-key"
WRONG_AUTHORITY = "server's certificate is not from a trusted authority .*: name its authority with --tls-ca"
NO_TLS = "the server uses TLS: name the authority of its certificate with --tls-ca"

REFUSALS = {
    "no certificate": (NO_CERTIFICATE, "the client showed no certificate"),
    "another authority's certificate": (WRONG_CERTIFICATE, "the client's certificate is not valid: "),
    "an expired certificate": (EXPIRED_CERTIFICATE, "the client's certificate is not valid: certificate has expired"),
    "trust in another authority": (
        WRONG_AUTHORITY,
        "the client does not trust the authority of this server's certificate",
    ),
    "no TLS": (NO_TLS, "the client does not speak TLS"),
}


def tls_options(case: str, certificates: Certificates) -> list[str]:
    """Return the TLS options of a client in one of the cases."""
    authority = certificates.stranger if case == "trust in another authority" else certificates.authority
    own = {"another authority's certificate": certificates.forged, "an expired certificate": certificates.expired}
    options = [] if case == "no TLS" else ["--tls-ca", str(authority.pair.certificate)]
    if case in own:
        options += own[case].options()
    return options


def tls_context(case: str, certificates: Certificates) -> ssl.SSLContext | None:
    return TlsFiles(*tls_options(case, certificates)[1::2]).context(TLS_OPTIONS)


@pytest.mark.parametrize("case", REFUSALS)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_refused_client_and_the_log_report_the_reason(
    mutual: Server, certificates: Certificates, case: str, loop: str
) -> None:
    message, logged = REFUSALS[case]
    tls = tls_context(case, certificates)
    if loop == "asyncio":
        with pytest.raises(ServerError, match=message):
            Client([Address("127.0.0.1", mutual.port)], tls=tls).call("jobs.list")

    async def ask() -> None:
        client = AsyncClient([Address("127.0.0.1", mutual.port)], tls=tls)
        try:
            await client.call("jobs.list")
        finally:
            await client.close()

    with (
        pytest.raises(ServerError, match=message),
        asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner,
    ):
        runner.run(ask())
    if (case, loop) == ("trust in another authority", "uvloop"):
        return  # uvloop sends no alert when it refuses a server, so the server only detects the end of the connection
    eventually(lambda: refusals(mutual), "the log has the refusal")
    (line, *_) = refusals(mutual)
    assert (line["level"], line["peer"].rpartition(":")[0]) == ("warning", "127.0.0.1")
    assert line["reason"].startswith(logged)


def refusals(server: Server) -> list[dict[str, str]]:
    lines = [json.loads(line) for line in server.log_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "tls handshake refused"]


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_commands_and_workers_report_the_reason(
    mutual: Server, certificates: Certificates, tmp_path: Path, case: str
) -> None:
    message, _ = REFUSALS[case]
    options = ["--server", f"127.0.0.1:{mutual.port}", *tls_options(case, certificates)]
    status = mainspring("status", *options, cwd=tmp_path)
    assert status.returncode == 3
    assert re.search(message, status.stderr.decode())
    assert b"mainspring serve" not in status.stderr, "there is a server"
    (tmp_path / "app.py").write_text(APP)
    with commands.start(
        command("worker", "app.py", *options),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
    ) as worker:
        try:
            assert worker.stderr is not None
            assert re.search(message, worker.stderr.readline().decode())
        finally:
            worker.kill()


def test_many_refusals_of_one_kind_make_few_lines_in_the_log(mutual: Server, certificates: Certificates) -> None:
    tls = client_context(certificates.authority)
    for _ in range(20):
        assert_refused(mutual.port, tls)
    assert 1 <= len(refusals(mutual)) < 20


def test_a_client_with_tls_at_a_port_without_tls_reports_that(certificates: Certificates, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        options = ("--server", f"127.0.0.1:{server.port}", "--tls-ca", str(certificates.authority.pair.certificate))
        status = mainspring("status", *options, cwd=tmp_path)
        assert status.returncode == 3
        assert "the server does not use TLS on this port: omit --tls-ca (MAINSPRING_TLS_CA)" in status.stderr.decode()


def test_silent_handshakes_do_not_block_other_clients_and_end(mutual: Server, certificates: Certificates) -> None:
    tls = client_context(certificates.authority, certificates.client)
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", mutual.port), PACKET_TIMEOUT)) for _ in range(50)
        ]
        for number, half in enumerate(silent):
            half.sendall(b"\x16\x03\x01\x02\x00"[: number % 6])
        start = time.monotonic()
        honest = stack.enter_context(connect_honest(mutual.port, tls))
        honest.round_trip()
        assert time.monotonic() - start < 5, "the handshakes one after another would take 50 s"
        for half in silent:
            with suppress(ConnectionError):
                while half.recv(1000):
                    pass
        honest.round_trip()


def test_certificates_are_reloaded_at_sighup(certificates: Certificates, tmp_path: Path) -> None:
    used = Pair(tmp_path / "used.pem", tmp_path / "used.key")

    def use(pair: Pair) -> None:
        shutil.copy(pair.certificate, used.certificate)
        shutil.copy(pair.key, used.key)

    def number() -> str:
        with TlsPeer(server.port, tls) as peer:
            peer.sync()
            return peer.certificate_number()

    tls = client_context(certificates.authority)
    use(certificates.server)
    with serving(tmp_path, *used.options()) as server, TlsPeer(server.port, tls) as before:
        first = number()
        use(certificates.client)
        server.signal(signal.SIGHUP)
        eventually(lambda: number() != first, "a new connection receives the new certificate")
        second = number()
        used.certificate.write_text("no certificate\n")
        server.signal(signal.SIGHUP)
        eventually(lambda: "stay as they were" in server.log_text(), "the bad file is reported")
        assert number() == second
        before.extend()
        assert before.submit_new(b"f")
        server.assert_healthy()


def test_a_client_that_reads_nothing_is_paused_over_tls_too(certificates: Certificates, tmp_path: Path) -> None:
    """The server stops reading from a peer, so the unread answers are bounded."""
    with (
        serving(tmp_path, *certificates.server.options()) as server,
        TlsPeer(server.port, client_context(certificates.authority)) as peer,
    ):
        before = server.rss()
        peer.socket.settimeout(1.0)
        with pytest.raises(TimeoutError):
            peer.write(encode(Kind.ECHO_REQ, bytes(1_000_000)) * 200)
        assert server.rss() - before < 80_000_000
        server.assert_healthy()


# ---- jobs that tasks submit ----

APP = """
from mainspring import App

app = App()


@app.task
def double(number: int) -> int:
    return 2 * number


@app.task
def in_a_thread(number: int) -> int:
    return double.submit(number).result(timeout=20)


@app.task
async def on_the_loop(number: int) -> int:
    return await (await double.asubmit(number)).aresult(timeout=20)


@app.task(executor="process")
def in_a_process(number: int) -> int:
    return double.submit(number).result(timeout=20)
"""


@contextmanager
def running_workers(directory: Path, *arguments: str) -> Iterator[None]:
    """Run workers of APP."""
    (directory / "app.py").write_text(APP)
    log = directory / "workers.log"
    with (
        log.open("wb") as sink,
        commands.start(
            command("worker", "app.py", *arguments), cwd=directory, env=environment(), stderr=sink
        ) as workers,
    ):
        try:
            yield
            assert "Traceback" not in log.read_text()
        finally:
            workers.terminate()
            assert workers.wait(30) == 0


@pytest.mark.parametrize("processes", ["1", "2"])
def test_tasks_of_a_worker_submit_jobs_with_its_tls_options(
    certificates: Certificates, tmp_path: Path, processes: str
) -> None:
    authority = str(certificates.authority.pair.certificate)
    # Relative paths: processes of the worker must find the files from other directories.
    for name, path in (
        ("ca.pem", authority),
        ("own.pem", certificates.client.certificate),
        ("own.key", certificates.client.key),
    ):
        shutil.copy(path, tmp_path / name)
    own = ("--tls-ca", "ca.pem", "--tls-cert", "own.pem", "--tls-key", "own.key")
    with serving(tmp_path, *certificates.server.options(), "--tls-client-ca", authority) as server:
        where = ("--server", f"127.0.0.1:{server.port}", *own)
        with running_workers(tmp_path, *where, "--processes", processes):
            for task in ("in_a_thread", "on_the_loop", "in_a_process"):
                done = mainspring("submit", task, "[21]", *where, "--timeout", "30s", cwd=tmp_path)
                assert (done.returncode, done.stdout) == (0, b"42"), (task, done.stderr)
        server.assert_healthy()


def test_tasks_of_a_node_without_tls_connect_without_tls(certificates: Certificates, tmp_path: Path) -> None:
    """TLS files in the environment are for other servers: the node's own workers connect to it directly."""
    (tmp_path / "app.py").write_text(APP)
    authority = str(certificates.authority.pair.certificate)
    options = ("--store", "memory://", "--gearman", "127.0.0.1:0")
    with node("run", "app.py", *options, cwd=tmp_path, MAINSPRING_TLS_CA=authority) as running:
        for task in ("in_a_thread", "in_a_process"):
            done = mainspring("submit", task, "[21]", "--server", running.address, "--timeout", "30s", cwd=tmp_path)
            assert (done.returncode, done.stdout) == (0, b"42"), (task, done.stderr)
        assert running.stop() == 0
