"""A worker whose connection ends, in any way and whatever it still waits for, gives its jobs back at once, and once only."""

from __future__ import annotations

import socket
import struct
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

import apsw
import pytest
from tests.interop.packets import Kind, encode

from .extension import ExtensionKind
from .fleet import Fleet
from .leaving import NEXT_JOB, wait_for_log_lines
from .servers import serving
from .stores import POSTGRESQL, STORES, ZOOKEEPER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from .extension import Assigned, ExtensionPeer
    from .fleet import FleetNode, ForkServer
    from .servers import Server

MEMORY: Final = "memory"
SQLITE: Final = "sqlite"
LARGE: Final = 400_000
"""Bytes of a large payload: ZooKeeper takes no larger one."""
UNREAD: Final = 60
"""Large payloads that are more than the system buffers, and a peer may leave unread besides."""
SENT: Final = 25
"""Of these payloads, as many are more than a peer may leave unread."""


class End(Enum):
    """How a worker ends its side of the connection."""

    FIN = "it closes"
    RESET = "its process dies with unread data"
    HALF = "it sends no more, but reads on"


@dataclass
class Place:
    """A node. ``hold`` keeps its store from answering for a time; None if that is not possible."""

    node: Server | FleetNode
    hold: Callable[[], AbstractContextManager[None]] | None = None
    keeps_logs: bool = True
    """Whether calls can wait for lines of a job's log."""


@pytest.fixture(scope="module", params=[MEMORY, SQLITE, POSTGRESQL, ZOOKEEPER])
def place(
    request: pytest.FixtureRequest, fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("ends")
    if request.param == MEMORY:
        with serving(directory, store="memory://") as server:
            yield Place(server)
            server.assert_healthy()
    elif request.param == SQLITE:
        with serving(directory) as server:
            yield Place(server, lambda: _locked(directory / "jobs.db"))
            server.assert_healthy()
    else:
        with (
            STORES[request.param](request.getfixturevalue) as store,
            store.routes(1) as (route,),
            Fleet(fork_server, directory, route.url, lease=60) as fleet,
        ):
            assert route.proxy is not None
            proxy = route.proxy

            @contextmanager
            def frozen() -> Iterator[None]:
                proxy.freeze()
                try:
                    yield
                finally:
                    proxy.heal()

            yield Place(fleet.start("n1"), frozen, keeps_logs=request.param != ZOOKEEPER)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.close()


# ---- requests of a worker that are not answered when its connection ends


def request_nothing(worker: ExtensionPeer, function: bytes, jobs: list[Assigned]) -> None:
    del worker, function, jobs


def request_more_jobs(worker: ExtensionPeer, function: bytes, jobs: list[Assigned]) -> None:
    del function, jobs
    worker.ready(5)


def submit_one(worker: ExtensionPeer, function: bytes, jobs: list[Assigned]) -> None:
    del jobs
    worker.request(b"by " + function)


def submit_too_many(worker: ExtensionPeer, function: bytes, jobs: list[Assigned]) -> None:
    """More than a peer may have under way: the node reads no more from it."""
    del jobs
    worker.write(encode(ExtensionKind.SUBMIT, b"by " + function, b"", b"", b"") * 6000)


def wait_for_its_own_job(worker: ExtensionPeer, function: bytes, jobs: list[Assigned]) -> None:
    del function
    worker.wait(jobs[0].handle)


def settle_another(worker: ExtensionPeer, function: bytes, jobs: list[Assigned]) -> None:
    del function
    worker.settle(jobs[2], b"succeeded")


def list_jobs(worker: ExtensionPeer, function: bytes, jobs: list[Assigned]) -> None:
    """More lists than a peer may have under way."""
    del function, jobs
    worker.write(encode(ExtensionKind.CALL, b"1", b"jobs.list", b"{}") * 40)


def make_long_calls(worker: ExtensionPeer, function: bytes, jobs: list[Assigned]) -> None:
    """More of them than a peer may have under way."""
    del function
    wait_for_log_lines(worker, jobs[0].handle)


def _name(request: Callable[..., None]) -> str:
    return request.__name__


ANSWERED_LATE: Final = (request_nothing, request_more_jobs, wait_for_its_own_job, make_long_calls)
"""Requests that wait without a fault of the store."""
OF_THE_STORE: Final = (request_more_jobs, submit_one, submit_too_many, settle_another, list_jobs)
"""Requests that wait while the store does not answer."""


# ---- ends


def end(worker: ExtensionPeer, how: End) -> None:
    if how is End.HALF:
        worker.socket.shutdown(socket.SHUT_WR)
        return
    if how is End.RESET:
        worker.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    worker.close()


def assert_late_report_is_refused(place: Place, job: Assigned) -> None:
    with place.node.extended() as late:
        assert late.settle_as(job, b"succeeded", b"late") == b"stale"


def take(other: ExtensionPeer, left: set[bytes]) -> None:
    """Run the jobs that are left, each once, and no other."""
    left = set(left)
    while left:
        other.ready()
        job = other.job()
        left.remove(job.handle)
        assert other.settle_as(job, b"succeeded", b"by another") == b"recorded"
    other.ready()
    other.assert_silent()


@pytest.mark.parametrize("how", End)
@pytest.mark.parametrize("request_more", ANSWERED_LATE, ids=_name)
def test_jobs_of_an_ended_connection_run_at_another_worker(
    place: Place, request_more: Callable[[ExtensionPeer, bytes, list[Assigned]], None], how: End, function: bytes
) -> None:
    """A report that the worker has sent before its end counts, although it comes behind requests that wait."""
    if request_more is make_long_calls and not place.keeps_logs:
        pytest.skip("this store keeps no logs")
    with ExitStack() as stack:
        client, other = (stack.enter_context(place.node.extended()) for _ in range(2))
        other.register(function)
        worker = stack.enter_context(place.node.worker(function, places=2))
        kept, done = (client.submit_new(function) for _ in range(2))
        jobs = [worker.job() for _ in range(2)]
        assert [job.handle for job in jobs] == [kept, done]
        request_more(worker, function, jobs)
        worker.settle(jobs[1], b"succeeded", b"in time")
        end(worker, how)
        other.socket.settimeout(NEXT_JOB)
        if how is End.RESET:  # what it has sent may be lost
            other.ready()
            first = other.job()
            assert other.settle_as(first, b"succeeded", b"by another") == b"recorded"
            left = {kept, done} - {first.handle}
            if client.show(done)["state"] == "succeeded":
                left.discard(done)
            take(other, left)
        else:
            take(other, {kept})
            assert client.outcome(done).data == b"in time"
        assert_late_report_is_refused(place, jobs[0])
        assert client.outcome(kept).data == b"by another"


@pytest.mark.parametrize("how", End)
def test_jobs_that_a_worker_has_not_read_run_at_another_worker(place: Place, how: End, function: bytes) -> None:
    with ExitStack() as stack:
        client, other = (stack.enter_context(place.node.extended()) for _ in range(2))
        submitter = stack.enter_context(place.node.peer())
        other.register(function)  # otherwise the foreground jobs would be in a shared store, for workers of other nodes
        other.drain()
        stored = client.submit_new(function)
        foreground = [submitter.submit(function, b"", bytes(LARGE)) for _ in range(UNREAD)]
        worker = stack.enter_context(place.node.worker(function, places=UNREAD))
        submitter.await_status(foreground[SENT], b"1", b"1", b"0", b"0")
        end(worker, how)
        other.socket.settimeout(NEXT_JOB)
        take(other, {stored, *foreground})
        assert {submitter.expect(Kind.WORK_COMPLETE)[0] for _ in foreground} == set(foreground)


@pytest.mark.parametrize("how", End)
@pytest.mark.parametrize("request_more", OF_THE_STORE, ids=_name)
def test_jobs_of_an_ended_connection_wait_for_no_answer_of_the_store(
    place: Place, request_more: Callable[[ExtensionPeer, bytes, list[Assigned]], None], how: End, function: bytes
) -> None:
    """A foreground job, which is in memory alone, goes to another worker while the store holds a request of the first one."""
    if place.hold is None:
        pytest.skip("a store in memory answers at once")
    with ExitStack() as stack:
        client, waiting, other = (stack.enter_context(place.node.extended()) for _ in range(3))
        worker = stack.enter_context(place.node.worker(function, places=3))
        stored = client.submit_new(function)
        foreground = waiting.submit(function, b"", b"")
        settled = client.submit_new(function)
        jobs = [worker.job() for _ in range(3)]
        assert [job.handle for job in jobs] == [stored, foreground, settled]
        other.register(function)
        other.ready()
        other.drain()
        with place.hold():
            client.request(b"by " + function, b"", b"")
            request_more(worker, function, jobs)
            end(worker, how)
            other.socket.settimeout(NEXT_JOB)
            job = other.job()
            assert job.handle == foreground
            with suppress(BlockingIOError):
                client.socket.setblocking(False)
                assert not client.socket.recv(1, socket.MSG_PEEK), "the store has answered"
            client.socket.setblocking(True)
        assert other.settle_as(job, b"succeeded") == b"recorded"
        assert_late_report_is_refused(place, jobs[0])
        client.socket.settimeout(NEXT_JOB)
        client.next()
        done = client.show(settled)["state"] == "succeeded"
        assert done == (request_more is settle_another) or how is End.RESET
        take(other, {stored} if done else {stored, settled})
