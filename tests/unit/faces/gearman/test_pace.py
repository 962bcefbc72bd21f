"""Reports of workers about the pace of their heartbeats: a full worker gets no jobs with timeouts of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mainspring.nodes.model import Pace
from mainspring.server.fleet import ConnectedWorkers
from mainspring.wire.gearman_protocol import Type

from .a_face import F, G, Node, Peer

FIGURES: dict[str, Any] = {
    "items": 3,
    "capacity": 5000,
    "pace": 1000.0,
    "load": 0.6,
    "lag": 0.1,
    "refused": 0,
    "throttled": 2,
    "failed": 0,
    "full": False,
}


def timed(node: Node, places: int = 5) -> Peer:
    """Return a worker of F, with a heartbeat timeout, and of G without one."""
    worker = node.stream(G, places=0)
    worker.request(Type.REGISTER, F, b'{"heartbeat": 30}')
    worker.request(Type.READY, b"%d" % places)
    node.commit()
    return worker


def report(worker: Peer, **changed: Any) -> None:
    worker.request(Type.CALL, b"1", b"worker.pace", json.dumps(FIGURES | changed).encode())


def assigned(node: Node, worker: Peer) -> list[str]:
    node.commit()
    return [args[2] for name, args in worker.received() if name == "ASSIGN"]


def test_a_full_worker_gets_only_jobs_without_heartbeat_timeouts(node: Node) -> None:
    worker, tool = timed(node), node.connect()
    report(worker, full=True)
    tool.background(function=F)
    tool.background(function=G)
    assert assigned(node, worker) == ["g"]
    worker.request(Type.READY, b"3")
    assert assigned(node, worker) == [], "also jobs that waited for its readiness"
    report(worker)
    assert assigned(node, worker) == ["f"]
    tool.background(function=F)
    assert assigned(node, worker) == ["f"]


def test_a_full_worker_that_registers_again_stays_full(node: Node) -> None:
    worker, tool = timed(node), node.connect()
    report(worker, full=True)
    worker.request(Type.REGISTER, F, b'{"heartbeat": 20}')
    tool.background(function=F)
    assert assigned(node, worker) == []
    worker.request(Type.REGISTER, F, b"")
    tool.background(function=F)
    assert assigned(node, worker) == ["f", "f"], "without a timeout, the function is as any other"


def test_others_take_the_jobs_of_a_full_worker(node: Node) -> None:
    full, other, tool = timed(node), timed(node), node.connect()
    report(full, full=True)
    for _ in range(3):
        tool.background(function=F)
    assert assigned(node, full) == []
    assert assigned(node, other) == ["f", "f", "f"]


def test_the_figures_are_in_the_row_of_the_worker(node: Node) -> None:
    worker = timed(node)
    (row,) = ConnectedWorkers(node.face.peers).all()
    assert row.pace is None
    report(worker, items=7)
    (row,) = ConnectedWorkers(node.face.peers).all()
    assert row.pace == Pace(*(FIGURES | {"items": 7}).values())


@pytest.mark.parametrize(
    "changed", [{"items": -1}, {"lag": -0.1}, {"pace": 1e12}, {"full": 1}, {"load": "much"}, {"more": 1}]
)
def test_figures_that_cannot_be_are_refused(node: Node, changed: dict[str, Any]) -> None:
    worker = timed(node)
    worker.request(Type.CALL, b"1", b"worker.pace", json.dumps(FIGURES | changed).encode())
    node.commit()
    assert [(name, args[1]) for name, args in worker.received()] == [("FAULT", "usage")]
