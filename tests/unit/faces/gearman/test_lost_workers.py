"""Workers that end without a goodbye, or fall silent with jobs, have an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.event_log.interests import Interest
from mainspring.event_log.service import EventLog
from mainspring.event_log.store import RecordEvents, SaveInterests, StoredInterest
from mainspring.event_log.types import WORKER_LOST
from mainspring.faces.gearman.peers import CUT, ENDED, IS_SILENT
from mainspring.jobs.store import Settle
from mainspring.nodes import node_events
from mainspring.wire.gearman_protocol import Type

from .test_silence import assigned, beat, beating, check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .a_face import Node

Lost = list[tuple[str, int, str]]


@pytest.fixture
def lost(node: Node, monkeypatch: pytest.MonkeyPatch) -> Lost:
    """Return the lost workers: their namespaces, their jobs, and why."""
    found: Lost = []
    monkeypatch.setattr(node.face, "worker_lost", lambda _, namespace, jobs, why: found.append((namespace, jobs, why)))
    return found


def test_a_worker_whose_connection_ends_is_lost_with_its_jobs(node: Node, lost: Lost) -> None:
    worker, tool = node.stream(places=2), node.connect(namespace="team")
    other = node.connect(extended=True, namespace="team")
    other.request(Type.REGISTER, b"f", b"{}")
    other.request(Type.READY, b"1")
    for peer in (tool, tool, node.connect(), node.connect()):
        peer.background()
    node.commit()
    assert (len(assigned(worker)), len(assigned(other))) == (2, 1)
    worker.leave()
    other.leave()
    tool.leave()
    node.commit()
    assert lost == [("default", 2, ENDED), ("team", 1, ENDED)]


def test_a_worker_that_withdraws_its_requests_says_goodbye(node: Node, lost: Lost) -> None:
    worker, idle, holding, plain = node.stream(), node.stream(), node.stream(b"g"), node.worker()
    node.connect().background(function=b"g")
    for peer in (worker, idle, holding):
        peer.request(Type.PAUSE)
    idle.request(Type.READY, b"1")
    for peer in (worker, plain, node.connect()):
        peer.leave()
    node.commit()
    assert lost == [], "plain Gearman has no goodbye"
    idle.leave()
    holding.leave()
    node.commit()
    assert lost == [("default", 0, ENDED), ("default", 1, ENDED)]


def test_a_plain_worker_with_a_job_is_lost(node: Node, lost: Lost) -> None:
    worker = node.worker()
    node.connect().background()
    assert worker.ask(Type.GRAB_JOB)[0] == "JOB_ASSIGN"
    worker.leave()
    node.commit()
    assert lost == [("default", 1, ENDED)]


def test_a_worker_is_lost_once_while_it_is_silent(node: Node, lost: Lost) -> None:
    worker, idle = beating(node, places=2), beating(node, b"g")
    node.connect().background()
    node.commit()
    assert len(assigned(worker)) == 1
    check(node, 11)
    beat(idle)
    assert lost == [("default", 1, IS_SILENT)]
    beat(worker)
    check(node, 11)
    assert lost == [("default", 1, IS_SILENT)] * 2, "it has sent something between"
    check(node, 60)
    assert worker.closed
    assert idle.closed
    assert lost == [*[("default", 1, IS_SILENT)] * 2, ("default", 0, IS_SILENT)]


def test_a_node_that_ends_connections_loses_their_jobs_alone(node: Node, lost: Lost) -> None:
    holding, idle = node.stream(), node.stream(b"g")
    node.connect().background()
    node.commit()
    for peer in (*node.face.peers.connected,):
        peer.abort()
    node.commit()
    assert lost == [("default", 1, CUT)]
    assert holding.closed
    assert idle.closed


def test_workers_are_not_lost_as_the_node_stops(node: Node, lost: Lost) -> None:
    node.stream()
    node.connect().background()
    node.commit()
    node.face.close()
    node.commit()
    assert lost == []


def test_the_event_is_written_with_the_jobs_that_go_back(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(
        node.life.commits,
        node.life.reads,
        node.clock,
        node.engine.interests,
        lambda function: function(),
        first=None,
        retention=60.0,
        most=1000,
    )

    def record(worker: str, namespace: str, jobs: int, why: str) -> None:
        log.record(node_events.worker_lost(worker, why, namespace=namespace, node="n1", jobs=jobs))

    monkeypatch.setattr(node.face, "worker_lost", record)
    node.stream().leave()
    node.commit()
    interest = StoredInterest("one", Interest(frozenset({WORKER_LOST})))
    node.life.commits.put(SaveInterests(1, [interest]), lambda _: None)
    node.commit()
    worker = node.stream()
    node.connect().background()
    node.commit()
    groups: list[list[type]] = []
    commit = node.life.store.commit

    def noted(group: Sequence[Any], *rest: Any) -> None:
        groups.append([type(one) for one in group])
        commit(group, *rest)

    monkeypatch.setattr(node.life.store, "commit", noted)
    worker.leave()
    node.fail()
    log.tick()
    node.wait(2)
    log.tick()
    node.commit()
    (event,) = node.engine.tables.events
    assert (event.type, event.subject, event.namespace) == (WORKER_LOST, "localhost", "default")
    assert event.fields == {"node": "n1", "jobs": 1, "why": ENDED}
    assert {Settle, RecordEvents} <= {*groups[0]}
