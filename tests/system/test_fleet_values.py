"""Published values in a fleet: readers at other nodes, and the death of the node that holds the job."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App

from .fleet import Fleet, ForkServer, addresses
from .servers import eventually
from .stores import POSTGRESQL, STORES

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system


def test_values_wake_readers_at_other_nodes_and_survive_the_death_of_a_node(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(STORES[POSTGRESQL](request.getfixturevalue))
        fleet = stack.enter_context(Fleet(stack.enter_context(ForkServer()), tmp_path, store.url, lease=1.5))
        readers_node, workers_node = fleet.start_many("n1", "n2")
        worker = stack.enter_context(workers_node.worker(b"load"))
        app = App(addresses([readers_node]))
        stack.callback(app.close)
        submitted = app.function("load").submit()
        job = worker.job()
        read: list[Any] = []
        delays: list[float] = []

        def follow() -> None:
            number = 0
            while not read or read[-1] != "last":
                submitted.wait_value("rows", 60, after=number)
                delays.append(time.monotonic() - published)
                number = submitted.values()["rows"].number
                read.append(submitted.value("rows"))

        published = time.monotonic()
        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        for number in range(5):
            published = time.monotonic()
            worker.publish(job, rows=number)
            eventually(lambda number=number: read[-1:] == [number], f"the reader has {number}")  # type: ignore[misc]
        assert sorted(delays[1:])[1] < 0.5, "most readers are woken by messages, and not by the next look"
        workers_node.kill()
        other = stack.enter_context(readers_node.worker(b"load"))
        taken_over = other.job()
        assert submitted.value("rows") == 4, "the value of the lost attempt stays"
        other.publish(taken_over, rows="last")
        reader.join(60)
        assert not reader.is_alive()
        assert read == [0, 1, 2, 3, 4, "last"]
        assert other.settle_as(taken_over, b"succeeded") == b"recorded"
        assert submitted.value("rows") == "last"
