"""Silent workers: they get no work until they send something, and in the end their jobs go to others."""

from __future__ import annotations

import json

import pytest

from mainspring.server.fleet import ConnectedWorkers
from mainspring.wire.gearman_protocol import Type

from .a_face import F, G, Node, Peer

BEATS = 5


def check(node: Node, seconds: float = 0) -> None:
    """Let time pass, with a check of all peers each second and after it."""
    for _ in range(int(seconds)):
        node.wait(1)
        node.face.end_silent()
    node.face.end_silent()
    node.commit()


def beating(node: Node, *functions: bytes, places: int = 1, seconds: float = BEATS) -> Peer:
    worker = node.stream(*functions, places=places)
    assert worker.call("worker.beats", seconds=seconds) == {}
    return worker


def beat(worker: Peer) -> None:
    assert worker.ask(Type.HEARTBEAT, b'{"jobs": []}')[0] == "BEATEN"


def assigned(worker: Peer) -> list[str]:
    return [args[0] for name, args in worker.received() if name == "ASSIGN"]


def since(node: Node) -> list[int]:
    return [row.silent_us for row in ConnectedWorkers(node.face.peers).all()]


def test_a_worker_without_a_beat_gets_no_job_until_it_sends_something(node: Node) -> None:
    worker, tool = beating(node, places=2), node.connect()
    check(node, 9)
    beat(worker)
    check(node, 9)
    assert since(node) == [0]
    check(node, 2)
    (moment,) = since(node)
    assert moment == pytest.approx((node.clock.wall() - 10) * 1e6, abs=2e6)
    job = tool.background()
    node.commit()
    assert assigned(worker) == []
    worker.request(Type.HEARTBEAT, b'{"jobs": []}')
    node.commit()
    assert assigned(worker) == [job]
    assert since(node) == [0]


def test_another_worker_gets_the_jobs_of_a_silent_one(node: Node) -> None:
    silent, other = beating(node, places=10), beating(node, places=10)
    for _ in range(6):
        check(node, 2)
        beat(other)
    tool = node.connect()
    jobs = [tool.background() for _ in range(5)]
    node.commit()
    assert (assigned(silent), assigned(other)) == ([], jobs)
    silent.request(Type.READY, b"1")  # what it sends ends the silence, even a request for more
    assert 0 in since(node)


def test_a_worker_that_stays_silent_loses_its_jobs_uncounted(node: Node) -> None:
    worker, tool = beating(node), node.connect(extended=True)
    job = tool.background()
    assert assigned(worker) == [job]
    check(node, 59)
    assert tool.call("jobs.show", handle=job)["state"] == "running"
    assert not worker.closed
    check(node, 3)
    assert worker.closed
    assert since(node) == []
    other = node.stream()
    node.commit()
    ((_, args),) = other.received()
    assert (args[0], json.loads(args[4])["attempt"]) == (job, 1)


def test_workers_that_announce_no_beats_are_never_silent(node: Node) -> None:
    """Those of earlier versions, in other languages, and of plain Gearman."""
    earlier, plain, tool = node.stream(G, places=2), node.worker(F), node.connect()
    jobs = [tool.background(function=G)]
    check(node, 300)
    jobs.append(tool.background(function=G))
    assert assigned(earlier) == jobs
    assert since(node) == [0, 0]
    assert not plain.closed


def test_a_node_that_was_stopped_itself_counts_a_check_and_not_the_time(node: Node) -> None:
    worker = beating(node)
    check(node, 3)
    node.clock.advance(3600)  # without a check
    node.face.end_silent()
    assert since(node) == [0]
    assert not worker.closed


def test_a_lost_job_with_a_heartbeat_ends_the_credit_of_its_worker(node: Node) -> None:
    """Otherwise the same frozen worker would get it again."""
    worker, tool = node.stream(F, places=5, heartbeat=2), node.connect()
    job = tool.background()
    node.commit()
    node.wait(3)
    assert [name for name, _ in worker.received()] == ["ASSIGN", "STOP"]
    assert since(node) != [0]
    other = node.stream(F, places=5)
    node.commit()
    assert assigned(other) == [job]
    later = tool.background()
    node.commit()
    assert assigned(worker) == []
    assert assigned(other) == [later]
    worker.request(Type.HEARTBEAT, b'{"jobs": []}')
    assert since(node) == [0, 0]


def test_a_silent_worker_keeps_its_drain(node: Node) -> None:
    worker, tool = beating(node), node.connect()
    workers = ConnectedWorkers(node.face.peers)
    number = workers.all()[0].number
    check(node, 11)
    workers.direct(number, "drain")
    job = tool.background()
    workers.direct(number, "undrain")
    node.commit()
    assert assigned(worker) == [], "it is still silent"
    workers.direct(number, "drain")
    beat(worker)
    node.commit()
    assert assigned(worker) == []
    workers.direct(number, "undrain")
    node.commit()
    assert assigned(worker) == [job]


# ---- reports of frozen processes ----

ERROR = {"type": "WorkerFrozen", "message": "it blocks", "traceback": "here"}


def test_a_frozen_worker_gives_its_jobs_back_and_one_attempt_counts(node: Node) -> None:
    worker = node.stream(F, places=9, retry={"max_attempts": 2, "initial": 1})
    tool = node.connect(extended=True)
    jobs = [tool.background() for _ in range(3)]
    deliveries = [(args[0], args[1]) for name, args in worker.received() if name == "ASSIGN"]
    # It names one of its deliveries: the others may be on their way to it.
    assert tool.call("worker.frozen", deliveries=deliveries[:1], blocking=deliveries[0], error=ERROR) == {"jobs": 3}
    node.commit()
    assert assigned(worker) == []
    assert [tool.call("jobs.show", handle=job)["state"] for job in jobs] == ["scheduled", "leased", "leased"]
    assert [tool.call("jobs.show", handle=job)["attempt"] for job in jobs] == [1, 0, 0]
    other = node.stream(F, places=3)
    node.wait(2)
    packets = {args[0]: json.loads(args[4]) for name, args in other.received() if name == "ASSIGN"}
    assert [packets[job]["attempt"] for job in jobs] == [2, 1, 1]
    assert not any("alone" in info for info in packets.values())
    verdict = worker.ask(Type.SETTLE, *(part.encode() for part in deliveries[1]), b"succeeded", b"", b"")
    assert verdict[1][2] == "stale"


def test_a_stopping_worker_gives_all_back_uncounted(node: Node) -> None:
    worker, tool = node.stream(F, places=2), node.connect(extended=True)
    jobs = [tool.background() for _ in range(2)]
    deliveries = [(args[0], args[1]) for name, args in worker.received() if name == "ASSIGN"]
    assert tool.call("worker.frozen", deliveries=deliveries, error=ERROR) == {"jobs": 2}
    node.commit()
    assert [tool.call("jobs.show", handle=job)["attempt"] for job in jobs] == [0, 0]


def test_a_report_with_other_tokens_changes_nothing(node: Node) -> None:
    worker, tool = node.stream(F), node.connect(extended=True)
    job = tool.background()
    assert assigned(worker) == [job]
    assert tool.call("worker.frozen", deliveries=[(job, "wrong")], blocking=(job, "wrong"), error=ERROR) == {"jobs": 0}
    assert tool.call("jobs.show", handle=job)["state"] == "running"
    assert since(node) == [0]
