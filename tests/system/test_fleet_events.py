"""Events in a fleet: readers at other nodes than that of the cause, and the death of a reader's node."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from mainspring import App

from .fleet import Fleet, ForkServer, addresses
from .servers import eventually
from .stores import POSTGRESQL, STORES

if TYPE_CHECKING:
    from pathlib import Path

    from mainspring import Event

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
        begun = threading.Event()

        def follow() -> None:
            for event in app.events("job.succeeded", cursor="ledger"):
                seen.append(event)
                begun.set()

        threading.Thread(target=follow, daemon=True).start()
        probes = 0
        while not begun.is_set():  # node n2 records events once it has the interest
            probes += 1
            other.function("pay").submit()
            assert worker.settle_as(worker.job(), b"succeeded") == b"recorded"
            begun.wait(0.2)
        jobs = []
        for number in range(40):
            if number == 20:
                readers_node.kill()
            jobs.append(other.function("pay").submit().handle)
            assert worker.settle_as(worker.job(), b"succeeded") == b"recorded"
        eventually(lambda: seen[-1].job == jobs[-1], "the reader has all events")
        got = [event.job for event in seen if event.job in set(jobs)]
        assert got == jobs, "no event is missing, none came twice, and all are in their order"
        assert [int(event.id) for event in seen] == sorted({int(event.id) for event in seen})
