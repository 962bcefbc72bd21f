"""Events in a fleet: readers at other nodes than that of the cause, and the death of a reader's node."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from mainspring import App

from .event_source import EventSource
from .fleet import Fleet, ForkServer, addresses
from .servers import eventually
from .stores import POSTGRESQL, STORES
from .test_stream_kills import bearer

if TYPE_CHECKING:
    from pathlib import Path

    from mainspring import Event

    from .extension import ExtensionPeer

STREAM = "/api/v1/namespaces/default/events/stream?type=job.succeeded"
pytestmark = pytest.mark.system


def test_readers_get_the_events_of_other_nodes_in_order_and_go_on_when_their_node_is_killed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(STORES[POSTGRESQL](request.getfixturevalue))
        fleet = stack.enter_context(Fleet(stack.enter_context(ForkServer()), tmp_path, store.url, lease=1.5))
        readers_node, workers_node = fleet.start_many("n1", "n2")
        worker = stack.enter_context(workers_node.worker(b"pay", places=10_000))
        app, other = App(addresses([readers_node, workers_node])), App(addresses([workers_node]))
        stack.callback(app.close)
        stack.callback(other.close)
        seen: list[Event] = []
        begun, ends = threading.Event(), threading.Event()

        def follow() -> None:
            for event in app.events("job.succeeded", cursor="ledger"):
                seen.append(event)
                begun.set()
                if ends.is_set():
                    return

        def end() -> None:
            ends.set()
            done(worker, other)  # the reader gets one more event
            reader.join(60)

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        stack.callback(end)
        while not begun.is_set():  # node n2 records events once it has the interest
            done(worker, other)
            begun.wait(0.2)
        jobs = []
        for number in range(40):
            if number == 20:
                readers_node.kill()
            jobs.append(done(worker, other))
        eventually(lambda: seen[-1].job == jobs[-1], "the reader has all events")
        got = [event.job for event in seen if event.job in set(jobs)]
        assert got == jobs, "no event is missing, none came twice, and all are in their order"
        assert [int(event.id) for event in seen] == sorted({int(event.id) for event in seen})


def done(worker: ExtensionPeer, app: App) -> str:
    """Complete a job, and return its handle."""
    job = app.function("pay").submit()
    assert worker.settle_as(worker.job(), b"succeeded") == b"recorded"
    return job.handle


def test_a_stream_goes_on_at_another_node_with_the_events_that_came_meanwhile(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(STORES[POSTGRESQL](request.getfixturevalue))
        fork_server = stack.enter_context(ForkServer())
        fleet = stack.enter_context(Fleet(fork_server, tmp_path, store.url, "--http", "127.0.0.1:0", lease=1.5))
        readers_node, workers_node = fleet.start_many("n1", "n2")
        worker = stack.enter_context(workers_node.worker(b"pay", places=10_000))
        app = App(addresses([workers_node]))
        stack.callback(app.close)
        nodes = [readers_node.http, workers_node.http]
        source = stack.enter_context(EventSource(nodes, STREAM, bearer(worker)))
        source.begin()
        begun = source.next()
        assert begun is not None
        assert begun.kind == "place"
        deadline = time.monotonic() + 10
        while workers_node.ask("events.list", type="job.succeeded")["items"] == []:
            assert time.monotonic() < deadline, "the other node records events that a reader at this node wants"
            done(worker, app)
        handles = []
        seen: list[str] = []
        for number in range(30):
            handles.append(done(worker, app))
            if number == 15:
                readers_node.kill()
        while not seen or seen[-1] != handles[-1]:
            event = source.next()
            assert event is not None
            if event.kind == "event":
                seen.append(event.data["job"])
            else:
                assert event.kind == "place", event
        assert [one for one in seen if one in set(handles)] == handles
        assert len(set(seen)) == len(seen)
        assert source.connections == 2
