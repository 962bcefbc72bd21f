"""Attacks by large numbers of names: functions with jobs, abilities of workers, schedules."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from tests.interop.packets import Kind, encode
from tests.system.extension import FaultError
from tests.system.servers import eventually

from . import watching
from .watching import MEMORY_LIMIT, MIB, watched

if TYPE_CHECKING:
    from tests.system.extension import ExtensionPeer
    from tests.system.servers import Server

BATCH = 2000
TURNS_PER_WORKER = 0.1
"""Seconds of additional delay for each concurrent attacker: the event loop serves each for several turns of 20 ms."""


def functions(server: Server, *, count: int, listings: int, connections: int, growth: int = 64 * MIB) -> None:
    """Queue jobs of many functions, and request long lists of them many times on several connections."""
    with ExitStack() as stack:
        client = stack.enter_context(server.extended())
        with watched(server, growth=growth):
            assert set(submit_to_each(client, count)) == {Kind.JOB_CREATED}
        attackers = [stack.enter_context(server.peer()) for _ in range(connections)]
        with watched(server):
            for number in range(listings):
                attackers[number % connections].write(b"status\n")
            names = {line.split(b"\t")[0] for line in read_status(attackers[0])}
            listed_names = list_functions(client)
        assert sum(name.startswith(b"name-") for name in names) == count
        assert sum(name.startswith("name-") for name in listed_names) == count


def submit_to_each(client: ExtensionPeer, count: int) -> list[Kind]:
    """Submit a job to each of some functions, with a unique that joins a queued one; return the kinds of the answers."""
    kinds = []
    for begun in range(0, count, BATCH):
        numbers = range(begun, min(begun + BATCH, count))
        client.write(b"".join(encode(Kind.SUBMIT_JOB_BG, b"name-%d" % number, b"u", b"") for number in numbers))
        kinds += [client.receive().kind for _ in numbers]
    return kinds


def read_status(peer: ExtensionPeer) -> list[bytes]:
    """Read the answer to ``status``."""
    lines = []
    while (line := peer.line()) != b".\n":
        lines.append(line)
    return lines


def list_functions(client: ExtensionPeer) -> list[str]:
    """Return the names in ``functions.list``, page by page."""
    names: list[str] = []
    more: dict[str, Any] = {}
    while True:
        answer = client.call("functions.list", **more)
        names += [one["function"] for one in answer["items"]]
        if answer["next"] is None:
            return names
        more = {"cursor": answer["next"]}


def too_many_functions(server: Server, *, count: int, limit: int) -> None:
    """Submit jobs of more functions than the server accepts: it must refuse the excess and keep the others."""
    with server.extended() as client, watched(server):
        kinds = Counter(submit_to_each(client, count))
        assert kinds == {Kind.JOB_CREATED: limit, Kind.ERROR: count - limit}
        client.submit(b"name-0", b"", b"", Kind.SUBMIT_JOB_BG)


def abilities(server: Server, *, workers: int, count: int, growth: int = MEMORY_LIMIT) -> None:
    """Register several workers for many functions each, and disconnect them at the same time."""
    with ExitStack() as stack:
        with server.extended() as other:
            before = other.call("node.status")["workers"]
        peers = [stack.enter_context(server.peer()) for _ in range(workers)]
        packets = [
            b"".join(encode(Kind.CAN_DO, b"can-%d-%d" % (number, one)) for one in range(count))
            for number in range(workers)
        ]
        with watched(server, stall=watching.LONGEST_PING + TURNS_PER_WORKER * workers, growth=growth):
            for peer, data in zip(peers, packets, strict=True):
                peer.write(data)
            for peer in peers:
                peer.sync()
        with watched(server), server.extended() as other:
            for peer in peers:
                peer.close()
            eventually(lambda: other.call("node.status")["workers"] <= before, "they have disconnected")


def schedules(server: Server, *, count: int) -> None:
    """Declare many schedules at once, request many fire times of one, and remove all."""
    app = f"hostile-{time.monotonic_ns()}"  # one name per run: older code cannot undo an App's declarations of the last minute
    with server.extended() as client:
        specs = [schedule_spec(f"{app}-{number}") for number in range(count)]
        with watched(server):
            client.call("schedules.declare", app=app, schedules=specs)
        with watched(server):
            times = client.call("schedules.next", name=f"{app}-0", count=1000)["times"]
        assert len(times) == 1000
        with watched(server):
            client.call("schedules.declare", app=app, schedules=[])


def schedule_spec(name: str) -> dict[str, Any]:
    """Return the specification of a schedule with rare fire times: each 29th of February."""
    return {"name": name, "function": "report", "cron": "0 0 29 2 *", "timezone": "Europe/Berlin"}


def empty_function(server: Server) -> None:
    """Try to add a schedule without a function."""
    with server.extended() as client, pytest.raises(FaultError, match="function"):
        client.call("schedules.add", **schedule_spec("nothing") | {"function": ""})
