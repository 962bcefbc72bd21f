"""Clients and workers of other projects: each against a plain peer, and each client with each worker.

The test itself is the peer on the other side, so that two equal mistakes of one library do not hide each other. ``libraries.py``
lists features that a library lacks.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from .libraries import (
    BY_NAME,
    FAIL,
    LIBRARIES,
    PROGRAM_TIMEOUT,
    PROGRESS,
    RAISE,
    UPPER,
    Library,
    Program,
    await_worker,
    command,
    jobs,
)
from .packets import Kind, Packet, packet_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .packets import Peer
    from .servers import Server

    Run = Callable[..., Program]

BINARY = bytes(range(256)) + b"ab\0\0cd\xff"
TEXT = b"plain text"


def by_library(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("library", [BY_NAME[name] for name in names], ids=names)


every_library = by_library(*BY_NAME)


@pytest.fixture(scope="session")
def build_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def run(build_directory: Path, tmp_path: Path) -> Iterator[Run]:
    """Return a function that starts a library's program; the program ends with the test."""
    with ExitStack() as stack:

        def started(library: Library, server: Server, *arguments: str) -> Program:
            line = [*command(library, build_directory), str(server.port), *arguments]
            program = Program(line, tmp_path / f"{library.name}-{len(list(tmp_path.iterdir()))}.log")
            stack.callback(program.kill)
            return program

        yield started


def upper(data: bytes) -> bytes:
    """Do the work of the workers: convert ASCII letters."""
    return data.upper()


# -- workers


@pytest.fixture
def prefix(unique: bytes) -> str:
    """Return a short prefix for function names: abraxas supports names of up to 64 bytes."""
    return unique[:12].decode()


def start_worker(library: Library, server: Server, prefix: str, run: Run) -> None:
    run(library, server, "worker", prefix)
    await_worker(server.peer(), *[f"{prefix}-{name}" for name in library.functions])


def call(client: Peer, prefix: str, name: str, payload: bytes = b"") -> list[Packet]:
    """Call a worker's function, and return the answers without the handle."""
    handle = client.submit(f"{prefix}-{name}".encode(), b"", payload)
    packets: list[Packet] = []
    while not packets or packets[-1].kind not in {Kind.WORK_COMPLETE, Kind.WORK_FAIL, Kind.WORK_EXCEPTION}:
        kind, (answered, *rest) = client.receive()
        assert answered == handle
        packets.append(packet_of(kind, *rest))
    return packets


@every_library
def test_a_worker_of_each_library_serves_jobs(server: Server, library: Library, prefix: str, run: Run) -> None:
    start_worker(library, server, prefix, run)
    client = server.peer()
    client.option(b"exceptions")
    payload = BINARY if library.binary_results else TEXT
    for data in (payload, b"x" * 100_000):
        assert call(client, prefix, UPPER, data) == [packet_of(Kind.WORK_COMPLETE, upper(data))]

    handles = [
        client.submit(f"{prefix}-{UPPER}".encode(), b"", b"quiet", kind)
        for kind in (Kind.SUBMIT_JOB_BG, Kind.SUBMIT_JOB_HIGH_BG, Kind.SUBMIT_JOB_LOW_BG)
    ]
    for handle in handles:
        client.await_status(handle, b"0", b"0", b"0", b"0")

    for number in range(10):
        client.send(Kind.SUBMIT_JOB, f"{prefix}-{UPPER}".encode(), b"", b"a%d" % number)
    packets = [client.receive() for _ in range(20)]
    created = [packet.arguments[0] for packet in packets if packet.kind is Kind.JOB_CREATED]
    for number, handle in enumerate(created):
        assert packet_of(Kind.WORK_COMPLETE, handle, b"A%d" % number) in packets

    if FAIL in library.functions:
        assert call(client, prefix, FAIL) == [packet_of(Kind.WORK_FAIL)]
    if PROGRESS in library.functions:
        assert call(client, prefix, PROGRESS) == [
            packet_of(Kind.WORK_DATA, b"part"),
            packet_of(Kind.WORK_WARNING, b"careful"),
            packet_of(Kind.WORK_STATUS, b"1", b"2"),
            packet_of(Kind.WORK_COMPLETE, b"whole"),
        ]
    if RAISE in library.functions:
        assert call(client, prefix, RAISE)[-1] == packet_of(Kind.WORK_EXCEPTION, library.raised)
        if server.is_mainspring or not library.fails_after_raising:
            # the worker has not ended
            assert call(client, prefix, UPPER, b"again") == [packet_of(Kind.WORK_COMPLETE, b"AGAIN")]


@by_library("perl")
@pytest.mark.parametrize("name", ["empty", "zero"])
def test_a_perl_worker_may_return_a_false_value(
    server: Server, library: Library, prefix: str, run: Run, name: str
) -> None:
    """Its library sends only the handle. gearmand ends the connection, and the job starts again whenever the worker is back."""
    start_worker(library, server, prefix, run)
    if server.is_mainspring:
        client = server.peer()
        assert call(client, prefix, name) == [packet_of(Kind.WORK_COMPLETE, b"")]
        assert call(client, prefix, UPPER, b"again") == [packet_of(Kind.WORK_COMPLETE, b"AGAIN")]
    else:
        handle = server.peer().submit(f"{prefix}-{name}".encode(), b"", b"")
        await_attempts(server.peer(), handle, 2)


def await_attempts(peer: Peer, handle: bytes, count: int) -> None:
    """Poll gearmand until a job has lost a number of workers."""
    deadline = time.monotonic() + PROGRAM_TIMEOUT
    while not any(
        line.startswith(handle + b"\t") and int(line.split(b"\t")[1]) >= count for line in peer.table(b"show jobs")
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@every_library
def test_a_killed_workers_job_goes_to_its_successor(server: Server, library: Library, prefix: str, run: Run) -> None:
    """The first worker is a plain peer that disconnects with the job; the second is the library's."""
    function = f"{prefix}-{UPPER}".encode()
    client, first = server.peer(), server.worker(function)
    handle = client.submit(function, b"", b"next")
    assert first.grab_assigned()[0] == handle
    run(library, server, "worker", prefix)
    first.close()
    assert client.receive() == packet_of(Kind.WORK_COMPLETE, handle, b"NEXT")


# -- clients


def serve(worker: Peer, count: int) -> list[tuple[bytes, bytes]]:
    """Run a number of jobs according to their functions' names, and return names and payloads."""
    done: list[tuple[bytes, bytes]] = []
    while len(done) < count:
        worker.send(Kind.GRAB_JOB)
        packet = worker.receive()
        if packet.kind is Kind.NO_JOB:
            worker.send(Kind.PRE_SLEEP)
            packet = worker.receive()
        if packet.kind is Kind.NOOP:
            continue
        handle, function, payload = packet.arguments
        done.append((function, payload))
        match function.rpartition(b"-")[2].decode():
            case "upper":
                worker.send(Kind.WORK_COMPLETE, handle, upper(payload))
            case "fail":
                worker.send(Kind.WORK_FAIL, handle)
            case "raise":
                worker.send(Kind.WORK_EXCEPTION, handle, b"boom")
            case "progress":
                worker.send(Kind.WORK_DATA, handle, b"part")
                worker.send(Kind.WORK_WARNING, handle, b"careful")
                worker.send(Kind.WORK_STATUS, handle, b"1", b"2")
                worker.send(Kind.WORK_COMPLETE, handle, b"whole")
    worker.sync()
    return done


@every_library
def test_a_client_of_each_library_receives_results(server: Server, library: Library, prefix: str, run: Run) -> None:
    functions = [f"{prefix}-{name}" for name in ("1-upper", "2-upper", "fail", "progress")]
    worker = server.worker(*[function.encode() for function in functions])
    payload = BINARY if library.binary_client else TEXT
    count = [(functions[0], payload), (functions[1], b"two"), (functions[2], b"three"), (functions[3], b"four")]
    program = run(library, server, "client", "do", *jobs(*count))
    done = serve(worker, 4)
    assert sorted(done) == sorted((function.encode(), data) for function, data in count)
    lines = program.finish()
    assert f"{functions[0]} complete {upper(payload).hex()}" in lines
    assert f"{functions[1]} complete {b'TWO'.hex()}" in lines
    assert f"{functions[2]} failed" in lines
    assert f"{functions[3]} complete {library.whole.hex()}" in lines
    if "data" in library.progress:
        assert f"{functions[3]} data {b'part'.hex()}" in lines
    if "warning" in library.progress:
        assert f"{functions[3]} warning {b'careful'.hex()}" in lines
    if "status" in library.progress:
        assert any(line.startswith(f"{functions[3]} status ") for line in lines)


@every_library
def test_a_client_of_each_library_submits_background_jobs(
    server: Server, library: Library, prefix: str, run: Run
) -> None:
    count = [(f"{prefix}-{number}", b"payload %d" % number) for number in range(3)]
    lines = run(library, server, "client", "background", *jobs(*count)).finish()
    assert sorted(lines) == [f"{function} created" for function, _ in count]
    worker = server.worker(*[function.encode() for function, _ in count])
    for _ in count:
        handle, function, payload = worker.grab_assigned()
        assert (function.decode(), payload) in count
        worker.complete(handle)


@by_library(*[library.name for library in LIBRARIES if library.exceptions])
def test_a_client_receives_an_exception(server: Server, library: Library, prefix: str, run: Run) -> None:
    function = f"{prefix}-raise"
    worker = server.worker(function.encode())
    program = run(library, server, "client", "do", *jobs((function, b"x")))
    serve(worker, 1)
    assert program.finish() == [f"{function} exception {b'boom'.hex()}"]


@by_library(*[library.name for library in LIBRARIES if not library.exceptions])
def test_an_exception_is_a_failure_for_a_client_without_exceptions(
    mainspring: Server, library: Library, prefix: str, run: Run
) -> None:
    """gearmand leaves a NUL in the handle in this case: the libraries hang or crash."""
    function = f"{prefix}-raise"
    worker = mainspring.worker(function.encode())
    program = run(library, mainspring, "client", "do", *jobs((function, b"x")))
    serve(worker, 1)
    assert program.finish() == [f"{function} failed"]


# -- every client with every worker


@pytest.fixture(scope="module")
def workers(build_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Workers]:
    """Return the workers of all libraries, started once for each server; they end with the module."""
    with ExitStack() as stack:
        yield _Workers(build_directory, tmp_path_factory.mktemp("workers"), stack)


class _Workers:
    """Starts one worker of each library at a server, once."""

    def __init__(self, build_directory: Path, directory: Path, stack: ExitStack) -> None:
        self._build_directory = build_directory
        self._directory = directory
        self._stack = stack
        self._ready: set[int] = set()

    def settle(self, server: Server) -> None:
        """Wait until all libraries' workers are registered at the server."""
        if server.port in self._ready:
            return
        for library in LIBRARIES:
            line = [*command(library, self._build_directory), str(server.port), "worker", f"all-{library.name}"]
            program = Program(line, self._directory / f"{server.port}-{library.name}.log")
            self._stack.callback(program.kill)
        await_worker(server.peer(), *[f"all-{library.name}-{UPPER}" for library in LIBRARIES])
        self._ready.add(server.port)


@every_library
def test_a_client_of_each_library_uses_the_workers_of_all_libraries(
    server: Server, library: Library, workers: _Workers, run: Run
) -> None:
    workers.settle(server)
    data = {other.name: BINARY if library.binary_client and other.binary_results else TEXT for other in LIBRARIES}
    count = [(f"all-{name}-{UPPER}", payload) for name, payload in data.items()]
    lines = run(library, server, "client", "do", *jobs(*count)).finish()
    assert sorted(lines) == sorted(f"{function} complete {upper(payload).hex()}" for function, payload in count)
