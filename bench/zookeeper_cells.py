"""The rows of the table for ZooKeeper, and their scenarios."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from ensemble import SESSION_TIMEOUT, mainspring
from generator import LOAD, LoadError, load
from measure import Cell, Run, Scale, Side
from scenarios import WIDE, rate
from streaming import Completer, Holder, await_jobs, peers

if TYPE_CHECKING:
    from servers import Nodes, Server

HELD = 1_000
LARGE_BACKLOG, SMALL_BACKLOG, TURNS = 200_000, 1_000, 10
PLACES = 100
"""Places of the worker that counts assignments."""


def cells(template: str | None = None) -> list[Cell]:
    """Return the cells; a template with {store} replaces Mainspring's command."""
    one, three = mainspring(1, template), mainspring(3, template)
    return [
        Cell(
            key="zookeeper-e2e",
            measure="end to end on one ZooKeeper server, 16 workers, window 256, 8 connections",
            required="1,500/s",
            unit="jobs/s",
            sides=(Side("1 node", one, rate("e2e", 30_000, 3_000, workers=16, **WIDE)),),
            at_least=1500,
        ),
        Cell(
            key="zookeeper-e2e-nodes",
            measure="the same on 3 nodes, 18 workers and 9 connections spread over them",
            required="",
            unit="jobs/s",
            sides=(Side("3 nodes", three, rate("e2e", 30_000, 3_000, workers=18, conns=9, window=256)),),
        ),
        Cell(
            key="zookeeper-recovery",
            measure=f"SIGKILL of a node that holds 1,000 tasks, session of {SESSION_TIMEOUT:g} s: "
            "until all run elsewhere, beyond it",
            required="under 1 s",
            unit="s",
            sides=(Side("3 nodes", three, recovery),),
            under=1.0,
        ),
        Cell(
            key="zookeeper-failover",
            measure=f"SIGKILL of the master under load, session of {SESSION_TIMEOUT:g} s: "
            "the longest pause of assignments, beyond it",
            required="under 1 s",
            unit="s",
            sides=(Side("3 nodes", three, failover),),
            under=1.0,
        ),
        Cell(
            key="zookeeper-backlog",
            measure="16 workers drain 200,000 pending tasks, beside draining 1,000 ten times",
            required="0.5 x",
            unit="jobs/s",
            sides=(Side("200,000 pending", one, drain_large_backlog), Side("1,000 pending", one, drain_small_backlogs)),
            ratio_to=1,
            at_least=0.5,
            once=True,
        ),
    ]


def recovery(nodes: Nodes, _: Scale) -> Run:
    """Return the seconds beyond the session's time-out until 1,000 tasks of a killed node, not the master, run elsewhere."""
    heir, other, victim = nodes.nodes
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(peers([victim.port], _holder))
        load(victim, "submit", jobs=HELD, **WIDE)
        await_jobs(held, HELD, 20)
        heirs = stack.enter_context(peers([heir.port, other.port], _holder))
        time.sleep(1)  # the master has read the others' claims
        victim.stop(signal.SIGKILL)
        killed_at = time.monotonic()
        first_at = await_jobs(heirs, 1, SESSION_TIMEOUT * 10)
        last_at = await_jobs(heirs, HELD, SESSION_TIMEOUT * 10)
    details = {
        "seconds": last_at - killed_at,
        "first_task_after_s": first_at - killed_at,
        "by_node": [len(one.handles) for one in heirs],
    }
    return Run(last_at - killed_at - SESSION_TIMEOUT, details)


def _holder(port: int) -> Holder:
    return Holder(port, "bench", HELD)


def failover(nodes: Nodes, _: Scale) -> Run:
    """Return the longest pause of assignments beyond the session's time-out, while tasks are submitted continuously.

    The tasks are submitted at one node and run at another, so each needs the master, which is the node that started first.
    """
    master, submitter, runner = nodes.nodes
    command = [str(LOAD), "--mode", "submit", "--port", str(submitter.port), "--jobs", "1000000", "--window", "4"]
    with peers([runner.port], lambda port: Completer(port, "bench", PLACES)) as (worker,):
        loading = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            deadline = time.monotonic() + 30
            while worker.completed < HELD:
                worker.receive_all()
                if time.monotonic() > deadline:
                    raise LoadError(f"after 30 s {worker.completed} tasks were completed")
            master.stop(signal.SIGKILL)
            killed_at = seen_at = now = time.monotonic()
            seen, longest = worker.completed, 0.0
            while now < killed_at + SESSION_TIMEOUT * 3:
                worker.receive_all()
                now = time.monotonic()
                longest = max(longest, now - seen_at)
                if worker.completed > seen:
                    seen_at, seen = now, worker.completed
                time.sleep(0.005)
        finally:
            loading.kill()
            loading.communicate()
    return Run(longest - SESSION_TIMEOUT, {"longest_pause_s": longest, "completed": seen})


def drain_large_backlog(server: Server, scale: Scale) -> Run:
    """Return the tasks per second of draining 200,000; the details have the master's memory with all of them."""
    waiting = scale.count(LARGE_BACKLOG, 10_000)
    filled = load(server, "submit", jobs=waiting, **WIDE)
    at_full = server.rss_kib()
    drained = load(server, "drain", jobs=waiting, workers=16)
    details = {**drained, "submit_rate": filled["rate"], "rss_kib_at_full": at_full, "rss_kib_after": server.rss_kib()}
    return Run(drained["rate"], details)


def drain_small_backlogs(server: Server, scale: Scale) -> Run:
    """Return the tasks per second of draining 1,000 at a time."""
    seconds = 0.0
    turns = scale.count(TURNS, 3)
    for turn in range(turns):
        load(server, "submit", jobs=SMALL_BACKLOG, first=turn * SMALL_BACKLOG, **WIDE)
        seconds += load(server, "drain", jobs=SMALL_BACKLOG, first=turn * SMALL_BACKLOG, workers=16)["seconds"]
    return Run(turns * SMALL_BACKLOG / seconds, {"seconds": seconds, "rss_kib": server.rss_kib()})
