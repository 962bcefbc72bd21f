"""A node whose clock is wrong by an hour: jobs are due by the store's clock, and leases do not depend on wall clocks."""

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from .fleet import Fleet, ForkServer
from .fleet_clocks import node_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LEASE = 1.5
HOUR = 3600
SKEWS = pytest.mark.parametrize(("offset", "sign"), [("+1h", 1), ("-1h", -1)])


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer() as fork_server:
        yield fork_server


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@SKEWS
def test_a_node_with_a_wrong_clock_behaves_like_the_others(
    fork_server: ForkServer, tmp_path: Path, database: str, stack: ExitStack, offset: str, sign: int
) -> None:
    fleet = stack.enter_context(Fleet(fork_server, tmp_path, database, lease=LEASE))
    correct = fleet.start("right")
    skewed = stack.enter_context(node_at(offset, tmp_path, database, "--lease", f"{LEASE * 1000:.0f}ms"))
    with correct.extended() as asking:
        rows = {row["name"]: row for row in asking.call("nodes.list")["items"]}
    assert set(rows) == {"right", "n1"}
    # Each node submits a delayed job; the other node's worker must receive it on time, as if all clocks were correct.
    for submits, works in ((correct, skewed), (skewed, correct)):
        client = stack.enter_context(submits.extended())
        worker = stack.enter_context(works.worker(b"f"))
        began = time.monotonic()
        wall = time.time()
        handle = client.submit_new(b"f", b"delayed", delay=1.0)
        shown = client.show(handle)
        assert abs(datetime.fromisoformat(shown["created_at"]).timestamp() - wall) < 1
        assert abs(datetime.fromisoformat(shown["run_at"]).timestamp() - wall - 1) < 1
        worker.assert_silent()
        job = worker.job()
        assert job.handle == handle
        assert 1.0 <= time.monotonic() - began < 20
        assert worker.settle_as(job, b"succeeded") == b"recorded"
        worker.close()

    # Jobs' expiry times and end times use the same clock.
    client = stack.enter_context(skewed.extended())
    handle = client.submit_new(b"nobody", b"", expires=1.0)
    assert client.outcome(handle).state == b"expired"

    # During two leases no node is fenced; a node that is killed then is fenced.
    terms = {row["name"]: row["term"] for row in correct.ask("nodes.list")["items"]}
    time.sleep(2 * LEASE)
    assert {row["name"]: row["term"] for row in correct.ask("nodes.list")["items"]} == terms
    with skewed.worker(b"g") as worker, correct.extended() as peer:
        handle = peer.submit_new(b"g")
        assert worker.job().handle == handle
        skewed.kill()
    successor = stack.enter_context(correct.worker(b"g"))
    began = time.monotonic()
    assert successor.job().handle == handle
    assert time.monotonic() - began < LEASE + 20

    # The node's clock really is wrong: see its log, which has "started" after the line with the address.
    logged = [line for line in skewed.log_text().splitlines() if '"started"' in line]
    stamp = datetime.fromisoformat(logged[0].partition('"timestamp": "')[2].partition('"')[0])
    assert abs(stamp.timestamp() - time.time() - sign * HOUR) < 60
