"""Clients of a node that shares its store with others: what they leave behind when they go."""

from __future__ import annotations

import pytest

from mainspring.engines.memory.shared import SharedMemoryEngine, SharedTables
from mainspring.resources.model import Limits
from mainspring.testing import ManualClock

from .a_node import Node, side
from .test_functions import limit


@pytest.fixture
def node() -> Node:
    """Give one of several nodes of a store; the others are silent."""
    engine = SharedMemoryEngine(SharedTables(ManualClock().wall))
    node = Node(engine=engine)
    node.service.share(engine)
    return node


def send(node: Node) -> None:
    """Let a group be on its way to the store, and no more."""
    node.life.commits.hurry()
    while not node.life.store.busy:
        node.life.loop.soon.popleft()()


def test_a_foreground_job_that_is_dropped_while_it_is_handed_out_gives_its_token_back(node: Node) -> None:
    """Two leave it, one after the other. The store fails over the first, so that it waits again until the second is heard."""
    limit(node, Limits(concurrency=1))
    plain, streaming = node.worker(), node.stream(places=1)
    node.background("before")
    node.settling.succeeded(node.given(streaming), b"")  # the function's token is here now
    node.commit()
    node.window.sleep(plain)
    job, first = node.foreground("left", unique=b"u")
    node.commit()
    node.background("next")
    node.life.store.full = True
    node.service.clients.gone(first)
    send(node)
    node.service.clients.gone(node.wait_for(job.id))
    node.life.store.finish()
    held = node.grab(plain)
    assert held is not None
    assert held.job.id == job.id
    node.service.ready(streaming, 1)
    node.life.store.full = False
    node.commit()
    assert node.held(job) is None, "it is dropped"
    assert side(streaming).take() == ["job before", "job next"]
