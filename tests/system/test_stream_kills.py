"""Streams of the states of jobs go on after `SIGKILL` of their node, or of the job's node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .event_source import EventSource
from .fleet import Fleet
from .servers import serving

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from .extension import ExtensionPeer
    from .fleet import ForkServer
    from .stores import Store


def bearer(peer: ExtensionPeer, role: str = "viewer") -> dict[str, str]:
    """Return the header of a new token."""
    secret = peer.call("tokens.create", name=role, grants=[{"role": role, "payloads": True}])["token"]
    return {"Authorization": f"Bearer {secret}"}


def stream_of(handle: bytes) -> str:
    return f"/api/v1/namespaces/default/jobs/{handle.decode()}/stream"


def logs_of(handle: bytes) -> str:
    return f"/api/v1/namespaces/default/jobs/{handle.decode()}/logs/stream"


def next_lines(source: EventSource) -> list[str]:
    """Return the messages of the next event of a log."""
    event = source.next()
    assert event is not None
    assert event.kind == "lines"
    lines: Any = event.data
    return [line["message"] for line in lines]


class States:
    """The states of a job, as a client sees them: a stream that begins again repeats the newest one."""

    def __init__(self, source: EventSource) -> None:
        self._source = source
        self._last: tuple[str, int] | None = None

    def next(self) -> tuple[str, int] | None:
        """Return the next other state with its attempt; None at the end of the stream."""
        last = self._last
        while (state := self.newest()) == last:
            pass
        return state

    def newest(self) -> tuple[str, int] | None:
        """Return the state of the next event, which may be the same."""
        event = self._source.next()
        if event is None:
            return None
        assert event.kind == "job"
        self._last = (event.data["state"], event.data["attempt"])
        return self._last


def test_a_stream_goes_on_at_the_next_process(tmp_path: Path, stack: ExitStack, free_port: int) -> None:
    http = f"127.0.0.1:{free_port}"
    first = stack.enter_context(serving(tmp_path, "--http", http))
    client = stack.enter_context(first.extended())
    handle = client.submit_new(b"f", retry={"max_attempts": 5, "initial": 0.1})
    source = stack.enter_context(EventSource([http], stream_of(handle), bearer(client)))
    states = States(source)
    assert states.next() == ("pending", 0)
    stack.enter_context(first.worker(b"f")).job()
    assert states.next() == ("running", 1)
    first.kill()
    second = stack.enter_context(serving(tmp_path, "--http", http))
    assert states.next() == ("pending", 0), "the attempt is lost, and the next one has its number"
    worker = stack.enter_context(second.worker(b"f"))
    job = worker.job()
    assert states.next() == ("running", 1)
    assert worker.settle_as(job, b"failed", error={"type": "E", "message": "m"}) == b"recorded"
    assert states.next() == ("scheduled", 1)
    assert states.next() in {("pending", 1), ("leased", 1)}, "it is due, and the worker has no place for it"
    worker.ready()
    job = worker.job()
    assert states.next() == ("running", 2)
    assert worker.settle_as(job, b"succeeded") == b"recorded"
    second.kill()  # perhaps before the last event
    stack.enter_context(serving(tmp_path, "--http", http))
    assert [states.next(), states.next()] == [("succeeded", 2), None]
    assert source.connections in {2, 3}


def test_a_stream_goes_on_when_the_nodes_of_its_job_and_of_its_client_die(
    fork_server: ForkServer, tmp_path: Path, store: Store, stack: ExitStack
) -> None:
    fleet = stack.enter_context(Fleet(fork_server, tmp_path, store.url, "--http", "127.0.0.1:0"))
    clients_node, jobs_node = fleet.start_many("n1", "n2")
    client = stack.enter_context(jobs_node.extended())
    handle = client.submit_new(b"f")
    addresses = [clients_node.http, jobs_node.http]
    source = stack.enter_context(EventSource(addresses, stream_of(handle), bearer(client)))
    states = States(source)
    assert states.next() == ("pending", 0)
    lines = stack.enter_context(EventSource(addresses, logs_of(handle), bearer(client))).begin()
    worker = stack.enter_context(jobs_node.worker(b"f"))
    job = worker.job()
    worker.log(job, 1, "one", "two")
    assert next_lines(lines) == ["one", "two"]
    clients_node.kill()
    assert states.next() == ("running", 1), "at its node"
    worker.log(job, 3, "three")
    assert next_lines(lines) == ["three"], "the client has sent the id of its last event"
    assert lines.connections == 2
    clients_node = fleet.start("n1")
    addresses[0] = clients_node.http
    jobs_node.kill()
    shown = states.newest()
    assert shown in {("leased", 0), ("running", 1), ("pending", 0)}, "the job is held until its node's lease ends"
    worker = stack.enter_context(clients_node.worker(b"f"))
    job = worker.job()
    attempt = job.info["attempt"]  # the lost one counts if its start was recorded
    assert (job.handle, states.next()) == (handle, ("running", attempt)), "the same stream shows it at the next node"
    assert worker.settle_as(job, b"succeeded") == b"recorded"
    assert [states.next(), states.next()] == [("succeeded", attempt), None]
    assert source.connections == 3
