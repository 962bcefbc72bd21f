"""Workers that an operator drains or stops, over the Gearman port."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.server.fleet import ConnectedWorkers
from mainspring.wire.gearman_protocol import Type

if TYPE_CHECKING:
    from .a_face import Node


def test_a_draining_worker_gets_no_jobs_until_the_drain_ends(node: Node) -> None:
    workers = ConnectedWorkers(node.face.peers)
    stream = node.stream(places=2)
    tool = node.connect()
    (row,) = workers.all()
    assert (row.draining, row.extended, row.namespaces) == (False, True, ("default",))
    assert workers.direct(row.number, "drain")
    first = tool.background(b"1")
    node.commit()
    assert stream.received() == []
    stream.request(Type.READY, b"1")
    node.commit()
    assert stream.received() == []
    assert workers.all()[0].draining
    assert workers.direct(row.number, "undrain")
    node.commit()
    (packet,) = stream.received()
    assert (packet[0], packet[1][0]) == ("ASSIGN", first)
    tool.background(b"2")
    tool.background(b"3")
    node.commit()
    assert len(stream.received()) == 2, "it keeps the places that it announced before and during the drain"


def test_another_worker_gets_the_jobs_of_a_draining_one(node: Node) -> None:
    workers = ConnectedWorkers(node.face.peers)
    drained, other = node.stream(places=5), node.stream(places=5)
    workers.direct(workers.all()[0].number, "drain")
    tool = node.connect()
    for _ in range(3):
        tool.background()
    node.commit()
    assert (len(drained.received()), len(other.received())) == (0, 3)


def test_a_draining_worker_of_plain_gearman_sleeps(node: Node) -> None:
    workers = ConnectedWorkers(node.face.peers)
    worker = node.worker()
    assert worker.ask(Type.GRAB_JOB) == ("NO_JOB", [])
    worker.request(Type.PRE_SLEEP)
    (row,) = workers.all()
    assert (row.extended, row.stops) == (False, False)
    workers.direct(row.number, "drain")
    node.connect().background()
    node.commit()
    assert worker.received() == []
    assert worker.ask(Type.GRAB_JOB) == ("NO_JOB", [])
    worker.request(Type.PRE_SLEEP)
    workers.direct(row.number, "undrain")
    assert worker.received() == [("NOOP", [])]
    assert worker.ask(Type.GRAB_JOB)[0] == "JOB_ASSIGN"
    assert workers.direct(row.number, "stop") is False


def test_a_worker_that_takes_requests_is_asked_to_stop(node: Node) -> None:
    workers = ConnectedWorkers(node.face.peers)
    stream = node.stream()
    assert stream.call("worker.describe", version="9.9", stops=True) == {}
    (row,) = workers.all()
    assert (row.version, row.stops) == ("9.9", True)
    assert workers.direct(row.number, "stop")
    assert stream.received() == [("STOP", ["", "", "stop"])]
    functions = workers.details(row.number)
    assert functions == ([b"f"], {})
    assert workers.direct(row.number + 1, "stop") is None
