"""Logs of jobs in a fleet: readers at other nodes, and the death of a reader's node."""

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

pytestmark = pytest.mark.system


def test_a_reader_of_a_log_goes_on_when_its_node_is_killed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(STORES[POSTGRESQL](request.getfixturevalue))
        fleet = stack.enter_context(Fleet(stack.enter_context(ForkServer()), tmp_path, store.url, lease=1.5))
        readers_node, workers_node = fleet.start_many("n1", "n2")
        worker = stack.enter_context(workers_node.worker(b"chat"))
        app = App(addresses([readers_node, workers_node]))
        stack.callback(app.close)
        submitted = app.function("chat").submit()
        job = worker.job()
        read: list[str] = []

        def follow() -> None:
            for line in submitted.follow():
                read.append(line.message)  # noqa: PERF401 - another thread reads the list meanwhile

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        for number in (1, 2, 3):
            worker.log(job, 2 * number - 1, f"line {2 * number - 1}", f"line {2 * number}")
            if number == 2:
                readers_node.kill()
            seen = [f"line {one + 1}" for one in range(2 * number)]
            eventually(lambda seen=seen: read == seen, f"the reader has {2 * number} lines")  # type: ignore[misc]
        assert worker.settle_as(job, b"succeeded") == b"recorded"
        reader.join(30)
        assert not reader.is_alive()
        assert read == [f"line {number}" for number in range(1, 7)], "no line is missing, and none came twice"
