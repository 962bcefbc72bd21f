"""A connection with two workers: one for tasks, another one for something else."""

from __future__ import annotations

import json

import pytest

from mainspring.faces.gearman.peer_io import UNREAD
from mainspring.faces.gearman.worker_side import WorkerSide
from mainspring.jobs.held import Ability, Worker
from mainspring.wire.gearman_protocol import Type

from .a_face import F, G, Node, Peer

H = b"h"


class Both:
    """A connection whose first worker takes jobs of F, and whose second one takes jobs of G and H, each two at a time."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.connection: Peer = node.stream(F, places=2)
        peer = self.connection.wire.peer
        self.peer = peer
        side = WorkerSide(peer.face, peer.reading, peer.outbox, peer.name, peer.silence)
        self.second = side.worker = Worker(side, beside=peer.as_worker())
        peer.sides.append(side)
        for function in (G, H):
            node.service.workers.register(self.second, function, Ability())
        node.service.workers.ready(self.second, 2)

    def submit(self, *functions: bytes) -> list[tuple[bytes, bytes]]:
        """Submit a job of each function; return the handles and delivery tokens of those that are assigned here."""
        client = self.node.connect()
        for function in functions:
            client.background(function=function)
        packets = [args for name, args in self.connection.received() if name == "ASSIGN"]
        return [(args[0].encode(), args[1].encode()) for args in packets]


@pytest.fixture
def both(node: Node) -> Both:
    return Both(node)


def test_each_worker_has_a_credit_of_its_own(both: Both) -> None:
    assert len(both.submit(F, F, F, F, G)) == 3
    assert [len(worker.running) for worker in both.peer.workers] == [2, 1]
    both.connection.request(Type.PAUSE)
    assert both.second.credit == 1


def test_heartbeats_and_settlements_are_for_both(both: Both) -> None:
    deliveries = both.submit(F, G)
    jobs = [[handle.decode(), token.decode()] for handle, token in deliveries]
    name, (text,) = both.connection.ask(Type.HEARTBEAT, json.dumps({"jobs": jobs}).encode())
    assert (name, json.loads(text)) == ("BEATEN", {"stop": [], "lost": []})
    for handle, token in deliveries:
        verdict = both.connection.ask(Type.SETTLE, handle, token, b"succeeded", b"", b"")
        assert verdict == ("SETTLED", [handle.decode(), token.decode(), "recorded"])


def test_both_lose_their_jobs_with_the_connection(both: Both, node: Node) -> None:
    both.submit(F, G)
    both.connection.leave()
    node.commit()
    assert not node.service.dispatch.workers
    assert {name: queue.running for name, queue in node.service.dispatch.queues.items()} == {F: 0, G: 0, H: 0}
    others = node.stream(F, G, places=2)
    node.commit()
    assert len(others.received()) == 2


def test_both_get_no_job_while_the_connection_does_not_read(node: Node) -> None:
    object.__setattr__(node.face.settings, "unsent_bytes", 0)
    both = Both(node)
    both.connection.wire.protocol.pause_writing()
    both.connection.send(b"version\n")
    assert both.peer.reading.paused_for(UNREAD)
    both.submit(F, G)
    assert [len(worker.running) for worker in both.peer.workers] == [0, 0]
    both.connection.wire.protocol.resume_writing()
    node.commit()
    assert [args[2] for name, args in both.connection.received() if name == "ASSIGN"] == ["f", "g"]


def test_reset_abilities_unregisters_both(both: Both) -> None:
    both.connection.request(Type.RESET_ABILITIES)
    assert [len(worker.abilities) for worker in both.peer.workers] == [0, 0]
    assert both.connection.ask(Type.ECHO_REQ, b"x") == ("ECHO_RES", ["x"])


def test_both_are_one_line_of_the_workers(both: Both) -> None:
    line = next(line for line in both.connection.text("workers").splitlines() if " : " in line)
    assert line.partition(" : ")[2].split() == ["f", "h", "g"]


def test_a_connection_with_only_the_second_is_busy(node: Node) -> None:
    connection = node.connect(extended=True)
    peer = connection.wire.peer
    assert not peer.busy()
    side = WorkerSide(peer.face, peer.reading, peer.outbox, peer.name, peer.silence)
    side.worker = Worker(side)
    peer.sides.append(side)
    assert peer.busy()
