"""Deadlines of nodes that are killed: each late job has one event, whichever node was there when."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from .extension import ExtensionKind, ExtensionPeer
from .servers import eventually, serving

if TYPE_CHECKING:
    from pathlib import Path

    from .fleet import Fleet

pytestmark = pytest.mark.system

JOBS = 1_500
BATCH = 500
LEAD = 6.0
"""Seconds from the first submit to the deadlines."""
TYPE = "job.overdue"


def want(peer: ExtensionPeer) -> str:
    """Ask for the events from now on; return the place."""
    place: str = peer.call("events.list", type=[TYPE], after="end")["last"]
    return place


def submit(peer: ExtensionPeer) -> set[str]:
    """Submit jobs that nobody runs, and whose deadlines are at one time; return their handles."""
    due = time.time() + LEAD
    handles: set[str] = set()
    for _ in range(JOBS // BATCH):  # each batch is one write: its jobs share commits
        for _ in range(BATCH):
            peer.request(b"nobody", options={"deadline": due - time.time()})
        handles.update(peer.expect(ExtensionKind.SUBMITTED)[0].decode() for _ in range(BATCH))
    return handles


def late(peer: ExtensionPeer, place: str) -> list[str]:
    """Return the jobs of all events behind a place."""
    jobs: list[str] = []
    while True:
        page: dict[str, Any] = peer.call("events.list", type=[TYPE], after=place, limit=1000)
        if not page["items"]:
            return jobs
        jobs += [one["job"] for one in page["items"]]
        place = page["last"]


def check(peer: ExtensionPeer, place: str, handles: set[str]) -> None:
    """Check that each job gets one event."""
    eventually(lambda: len(late(peer, place)) >= len(handles), "all are late")
    assert sorted(late(peer, place)) == sorted(handles)


def test_a_node_that_is_killed_reports_each_late_job_once(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        with server.extended() as peer:
            place, handles = want(peer), submit(peer)
            eventually(lambda: late(peer, place), "the first ones are late")
        server.kill()  # some groups are committed, and others are not
    with serving(tmp_path) as server, server.extended() as peer:
        check(peer, place, handles)


def test_another_node_reports_what_a_dead_one_has_left(fleet: Fleet) -> None:
    one, two = fleet.start_many("n1", "n2")
    with two.extended() as peer:
        place, handles = want(peer), submit(peer)
        eventually(lambda: late(peer, place), "the first ones are late")
        one.kill()
        check(peer, place, handles)
