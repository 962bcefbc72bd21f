"""Requests while the store is away: a client gets an answer in time, and nothing is done twice or after it was given up."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.server import PostgresServer, memory_directory

from mainspring import App, ConnectionLostError, NoAnswerError, RefusedError, UsageError
from mainspring.cli.main import main

from .fleet import Fleet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .fleet import ForkServer
    from .servers import Server

pytestmark = pytest.mark.system
LIMIT = 1.5
"""Seconds; longer than a job waits before its disconnect drops it."""


@pytest.fixture(scope="module")
def server(postgres_programs: Path) -> Iterator[PostgresServer]:
    """Return a server that the module's tests disturb."""
    del postgres_programs
    with PostgresServer(parent=memory_directory()) as server:
        yield server


def test_a_submit_has_a_limit_and_is_repeated_by_its_key(
    fork_server: ForkServer, server: PostgresServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Fleet(fork_server, tmp_path, server.create_database(), lease=60.0) as fleet:
        node = fleet.start("n")
        app = App(node.address, request_timeout=LIMIT)
        f = app.function("f")
        keyed = f.options(request_key="order-7")
        before = f.submit(b"before")

        async def asubmit() -> None:
            try:
                await f.asubmit(b"asyncio")
            finally:
                await app.aclose()

        async def cancelled() -> None:
            async with asyncio.timeout(LIMIT):
                try:
                    await f.options(request_timeout=60).asubmit(b"cancelled")
                finally:
                    await app.aclose()

        server.pause()
        try:
            with pytest.raises(NoAnswerError, match="outcome is unknown") as unknown:
                keyed.submit(b"keyed")
            assert unknown.value.limit == LIMIT
            with pytest.raises(NoAnswerError):
                f.options(request_timeout="2s").submit(b"blocking")
            with pytest.raises(NoAnswerError):
                f.submit_many([b"many", b"more"])
            with pytest.raises(NoAnswerError):
                asyncio.run(asubmit())
            with pytest.raises(TimeoutError):
                asyncio.run(cancelled())
            options = ["--server", node.address, "--request-timeout", f"{LIMIT}s"]
            assert main(["submit", "f", "command", "--background", *options]) == 5
            assert "outcome is unknown" in capfd.readouterr().err
            with node.peer() as peer:
                while len(peer.table(b"workers")) > 1:  # the node has seen that all of them have gone
                    time.sleep(0.02)
        finally:
            server.resume()
        job = retried(lambda: keyed.submit(b"keyed"))
        assert retried(lambda: keyed.submit(b"keyed")).handle == job.handle
        with pytest.raises(RefusedError, match="another submit"):
            keyed.submit(b"another")
        stored = [one["handle"] for one in node.ask("jobs.list", function="f")["items"]]
        assert sorted(stored) == sorted([before.handle, job.handle]), (
            "no job that was given up is stored, and none twice"
        )
        server.kill()  # stopped outright: connections are refused
        with pytest.raises(NoAnswerError, match="outcome is unknown"):
            f.submit(b"begun")
        server.start()
        assert retried(lambda: keyed.submit(b"keyed")).handle == job.handle
        found = [one["handle"] for one in node.ask("jobs.list", function="f")["items"]]
        assert len(set(found) - set(stored)) <= 1, "the node may have begun to store it, and does so once"
        app.close()


def retried(submit: Any) -> Any:
    """Repeat a submit until the node has its store back."""
    for _ in range(40):
        try:
            return submit()
        except (ConnectionLostError, RefusedError):
            continue
    return submit()


def test_a_request_key_joins_the_job_of_the_first_submit(healthy: Server) -> None:
    """In SQLite, in one namespace, also after the job has ended."""
    app = App(f"127.0.0.1:{healthy.port}")
    f = app.function("keyed").options(request_key="k")
    with healthy.peer() as worker:
        worker.can_do(b"keyed")
        first = f.submit(b"x")
        handle = worker.grab_assigned()[0]
        worker.complete(handle, b"done")
    assert handle.decode() == first.handle
    assert not first.joined
    repeated = f.submit(b"x")
    assert (repeated.handle, repeated.joined) == (first.handle, True)
    assert repeated.result(timeout=60) == b"done"
    with pytest.raises(RefusedError, match="another submit"):
        f.submit(b"y")
    with pytest.raises(UsageError, match="one submit"):
        f.submit_many([b"x"])
    assert app.function("keyed").options(request_key="other").submit(b"x").handle != first.handle
    app.close()


def test_a_node_that_does_not_run_answers_no_request(healthy: Server) -> None:
    """Its process is stopped, so that connections to it stay open."""
    app = App(f"127.0.0.1:{healthy.port}", request_timeout=0.5)
    job = app.function("frozen").submit(b"")
    os.kill(healthy.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(NoAnswerError):
            app.function("frozen").submit(b"")
        with pytest.raises(ConnectionLostError):
            job.info()
        with pytest.raises(ConnectionLostError):
            asyncio.run(asked(app, job))
    finally:
        os.kill(healthy.process.pid, signal.SIGCONT)
    assert job.info()["state"] == "pending"
    app.close()


async def asked(app: App, job: Any) -> None:
    try:
        await job.ainfo()
    finally:
        await app.aclose()
