"""The commands ``gearman`` and ``gearadmin`` as scripts use them."""

from __future__ import annotations

import re
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.conftest import find_program

from .packets import PACKET_TIMEOUT, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .servers import Server


class Tools:
    """Runs both commands against one server."""

    def __init__(self, server: Server) -> None:
        self._address = ["-h", "127.0.0.1", "-p", str(server.port)]
        self._gearman = find_program("gearman")
        self._gearadmin = find_program("gearadmin")
        self._workers: list[subprocess.Popen[bytes]] = []

    def client(self, *options: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a client to its end."""
        return subprocess.run(
            [self._gearman, *self._address, *options],
            input=data,
            capture_output=True,
            timeout=PACKET_TIMEOUT,
            check=False,
        )

    def start_worker(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker, which ends with the test."""
        worker = subprocess.Popen(
            [self._gearman, "-w", *self._address, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._workers.append(worker)
        return worker

    def admin(self, *options: str) -> str:
        """Run an administrator's command, and return its output."""
        return subprocess.run(
            [self._gearadmin, *self._address, *options],
            capture_output=True,
            timeout=PACKET_TIMEOUT,
            check=True,
            text=True,
        ).stdout

    def stop(self) -> None:
        """End the workers."""
        for worker in self._workers:
            with suppress(ProcessLookupError):
                worker.kill()
            worker.communicate()


@pytest.fixture
def tools(server: Server) -> Iterator[Tools]:
    started = Tools(server)
    yield started
    started.stop()


@pytest.fixture
def name(function: bytes) -> str:
    return function.decode()


BINARY = bytes(range(256)) * 64


def test_cat_as_a_worker_returns_its_input(tools: Tools, name: str) -> None:
    tools.start_worker("-f", name, "--", "cat")
    assert tools.client("-f", name, data=BINARY).stdout == BINARY
    assert tools.client("-f", name, "an argument").stdout == b"an argument"


def test_a_filter_runs_as_a_worker(tools: Tools, name: str) -> None:
    tools.start_worker("-f", name, "--", "wc", "-l")
    done = tools.client("-f", name, data=b"one\ntwo\nthree\n")
    assert (done.stdout.strip(), done.returncode) == (b"3", 0)


def test_a_failing_worker_fails_the_job(tools: Tools, name: str) -> None:
    tools.start_worker("-f", name, "--", "false")
    done = tools.client("-f", name, data=b"x")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"Job failed" in done.stderr


def test_each_line_may_be_a_job(tools: Tools, name: str) -> None:
    tools.start_worker("-f", name, "--", "tr", "a-z", "A-Z")
    assert tools.client("-f", name, "-n", data=b"one\ntwo\n").stdout == b"ONE\nTWO\n"


def test_lines_of_a_worker_arrive_as_data_packets(tools: Tools, server: Server, name: str) -> None:
    tools.start_worker("-f", name, "-n", "--", "seq", "3")
    client = server.peer()
    client.submit(name.encode(), b"", b"")
    # the command repeats earlier lines in every packet, and prints the last result when it arrives
    packets = [client.receive()]
    while packets[-1].kind is not Kind.WORK_COMPLETE:
        packets.append(client.receive())
    assert packets[0].kind is Kind.WORK_DATA
    assert [b"1\n2\n3\n".startswith(packet.arguments[1]) for packet in packets] == [True] * len(packets)


def test_a_worker_ends_after_a_number_of_jobs(tools: Tools, name: str) -> None:
    worker = tools.start_worker("-f", name, "-c", "2", "--", "cat")
    for number in range(2):
        assert tools.client("-f", name, str(number)).stdout == str(number).encode()
    assert worker.wait(PACKET_TIMEOUT) == 0


@pytest.mark.parametrize("options", [[], ["-I"], ["-L"]], ids=["normal", "high", "low"])
def test_background_jobs_wait_for_a_worker(tools: Tools, server: Server, name: str, options: list[str]) -> None:
    assert tools.client("-b", *options, "-f", name, "later").returncode == 0
    handle, _, payload = server.worker(name.encode()).grab_assigned()
    assert payload == b"later"
    watcher = server.peer()
    assert watcher.status(handle) == (b"1", b"1", b"0", b"0")


def test_a_unique_joins_jobs(tools: Tools, server: Server, name: str) -> None:
    for _ in range(3):
        tools.client("-b", "-u", "the-unique", "-f", name, "same")
    worker = server.worker(name.encode())
    assert worker.grab(Kind.GRAB_JOB_UNIQ).arguments[1:] == (name.encode(), b"the-unique", b"same")
    assert worker.grab().kind is Kind.NO_JOB


def test_gearadmin_shows_the_server(tools: Tools, server: Server) -> None:
    assert re.search(r"\d+\.\d+", tools.admin("--server-version"))
    assert tools.admin("--getpid").strip() == str(server.process.pid)


def test_gearadmin_shows_jobs_and_workers(tools: Tools, server: Server, name: str, unique: bytes) -> None:
    client, worker = server.peer(), server.peer()
    worker.send(Kind.SET_CLIENT_ID, b"me")
    worker.can_do(name.encode())
    handle = client.submit(name.encode(), unique, b"").decode()
    assert f"{name}\t1\t0\t1\n" in tools.admin("--status")
    assert f"{name}\t0\t1\t0\t1\n" in tools.admin("--priority-status")
    assert re.search(rf"(?m)^\d+ 127\.0\.0\.1 me : {re.escape(name)}$", tools.admin("--workers"))
    assert f"{handle}\t0\t0\t0\n" in tools.admin("--show-jobs")
    assert f"{unique.decode()}\n" in tools.admin("--show-unique-jobs")
    tools.admin("--cancel-job", handle)
    assert client.receive().kind is Kind.WORK_FAIL


def test_gearadmin_creates_and_drops_functions(tools: Tools, name: str) -> None:
    tools.admin("--create-function", name)
    assert f"{name}\t0\t0\t0\n" in tools.admin("--status")
    tools.admin("--drop-function", name)
    assert name not in tools.admin("--status")
