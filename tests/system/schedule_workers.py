"""Workers that run schedules' jobs on several nodes, and checks of the schedules' histories."""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Self

from .extension import ExtensionPeer, FaultError
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .fleet import FleetNode

EVERY_SECOND = [f"tick-{number}" for number in range(5)]
"""Schedules that fire every second and make up for all missed times."""
PAGE = 1000


class ScheduleWorkers:
    """One worker for each node. It reconnects when its node returns, and ends each job with success."""

    def __init__(self, nodes: dict[str, FleetNode]) -> None:
        self._nodes = nodes
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self.recorded = Counter[bytes]()
        """How often each job's settlement was recorded."""
        self._threads = [threading.Thread(target=self._run, args=(name,), daemon=True) for name in nodes]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(30)

    def _run(self, name: str) -> None:
        while not self._ended.is_set():
            try:
                peer = ExtensionPeer(self._nodes[name].port)
            except OSError:
                self._ended.wait(0.1)
                continue
            try:
                peer.socket.settimeout(1.0)
                self._work(peer)
            except (OSError, AssertionError, EOFError):
                self._ended.wait(0.1)  # its node is dead or frozen, or has given up its jobs
            finally:
                peer.close()

    def _work(self, peer: ExtensionPeer) -> None:
        peer.extend()
        peer.register(b"run")
        while not self._ended.is_set():
            peer.ready(1)
            job = peer.job()
            if peer.settle_as(job, b"succeeded") == b"recorded":
                with self._lock:
                    self.recorded[job.handle] += 1


def history(node: FleetNode, name: str) -> list[dict[str, Any]]:
    """Return the runs of a schedule, the oldest first."""
    runs: list[dict[str, Any]] = node.ask("schedules.history", name=name, limit=PAGE)["items"]
    assert len(runs) < PAGE
    return list(reversed(runs))


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def call_until_done(node: FleetNode, method: str, **params: Any) -> None:
    """Call a method, repeatedly if necessary: on a busy machine the node may just have lost its lease."""

    def done() -> bool:
        try:
            node.ask(method, **params)
        except FaultError as error:
            if error.code not in {"unavailable", "conflict"}:
                raise
            return "already" in error.message  # an earlier call succeeded, and its answer was lost
        return True

    eventually(done, f"{method} {params['name']}")


def add(node: FleetNode) -> list[str]:
    """Add the schedules, and return the names of those that have fire times of their own."""
    common = {"function": "run", "misfire": "all"}
    for name in (*EVERY_SECOND, "a", "b"):
        call_until_done(node, "schedules.add", name=name, every=1.0, **common)
    call_until_done(node, "schedules.add", name="quick", every=0.2, **common)
    call_until_done(node, "schedules.add", name="cron", cron="* * * * * *", **common)
    call_until_done(node, "schedules.add", name="alone", every=1.0, overlap="forbid", **common)
    call_until_done(node, "schedules.add", name="queued", every=1.0, overlap="queue", **common)
    call_until_done(node, "schedules.add", name="child", parents=["a", "b"], function="run")
    return [*EVERY_SECOND, "a", "b", "quick", "cron", "alone", "queued"]


def end_and_check(witness: FleetNode, roots: Sequence[str], added: float, schedule_workers: ScheduleWorkers) -> None:
    """Pause the schedules of `add`, and assert that each of their fire times had exactly one run."""
    ended = time.time()
    for name in roots:
        call_until_done(witness, "schedules.pause", name=name)
    eventually(
        lambda: all(run["finished"] for name in (*roots, "child") for run in history(witness, name)),
        "all runs have ended",
        timeout=60,
    )
    found = {name: history(witness, name) for name in (*roots, "child")}
    runs = [run for name in found for run in found[name]]
    for name in roots:
        times = [seconds(run["fire_time"]) for run in found[name] if run["reason"] != "paused"]
        step = 0.2 if name == "quick" else 1.0
        assert {round(after - before, 6) for before, after in pairwise(times)} == {step}, f"{name} leaves times out"
        assert times[0] <= added + 1
        assert times[-1] >= ended - step - 0.5
        assert {run["state"] for run in found[name] if run["reason"] not in {"paused", "overlap"}} == {"fired"}
    both = zip(found["a"], found["b"], strict=False)
    succeeded = [a["fire_time"] for a, b in both if a["state"] == b["state"] == "fired"]
    children = [run["fire_time"] for run in found["child"] if run["state"] == "fired"]
    # The child follows all fire times since it was added, and perhaps a few before that.
    first = succeeded.index(children[0])
    assert children == succeeded[first:]
    assert all(seconds(fire_time) < added for fire_time in succeeded[:first])
    fired = [run for run in runs if run["state"] == "fired"]
    assert {run["reason"] for run in runs if run["schedule"] not in {"alone", "child"}} <= {None, "paused"}
    assert {run["reason"] for run in found["alone"]} <= {None, "paused", "overlap"}
    assert {run["outcome"] for run in fired} == {"succeeded"}
    handles = Counter(run["handle"].encode() for run in fired)
    assert max(handles.values()) == 1, "each job is for one fire time"
    assert max(schedule_workers.recorded.values()) == 1
    assert schedule_workers.recorded.keys() <= handles.keys(), "each job is for a fire time"
    late = [seconds(run["started_at"]) - seconds(run["fire_time"]) for run in fired]
    assert median(late) < 1.0
