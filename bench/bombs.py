"""Durable submits of a neighbour while another namespace does its worst: their p99 divided by the p99 before.

Each kind of attack runs in the namespace ``loud``, over the Gearman port. The neighbour uses ``default``. Each turn has
a server of its own, and submits before the attack and during it.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import servers
from generator import LoadError, load
from measure import Cell, Run, Scale, Side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers import Contestant, Server

HERE = Path(__file__).resolve().parent
KINDS = {
    "schedules": "2,000 schedules of 0.1 s fire",
    "functions": "submits name a new function each",
    "operations": "20 operations go over 20,000 jobs",
    "refusals": "refused submits of 1 MiB",
    "lists": "lists of 20,000 jobs are read",
}
ROUNDS = 5


def cells(
    key: str, store: str, contestant: Contestant, wrapped: Callable[[Any], Any] = lambda scenario: scenario
) -> list[Cell]:
    """Return a cell for each kind; ``wrapped`` adapts the scenario to its server."""
    return [
        Cell(
            key=f"{key}-{kind}",
            measure=f"durable submits on {store}, window 1, while in another namespace {text}: p99",
            required="2 x without it",
            unit="x",
            sides=(Side(f"mainspring {store}", contestant, wrapped(partial(_beside, kind))),),
            under=2.0,
        )
        for kind, text in KINDS.items()
    ]


def _beside(kind: str, server: Server, scale: Scale) -> Run:
    """Submit before and during an attack. Raises LoadError if the attack ends early."""
    count, rounds = scale.count(200, 100), scale.count(ROUNDS, 1)
    load(server, "submit", jobs=count)  # the first submits make the function and the files

    def submits(first: int) -> list[dict[str, Any]]:
        return [load(server, "submit", jobs=count, first=first + count * number) for number in range(rounds)]

    alone = submits(count)
    with _attack(kind, server) as attack:
        beside = submits(count * (1 + rounds))
        if attack.poll() is not None:
            raise LoadError(f"the attack {kind} has ended with {attack.returncode}")
    p99_alone, p99_beside = (statistics.median(run["latency_us"]["p99"] for run in runs) for runs in (alone, beside))
    return Run(p99_beside / p99_alone, {"alone": alone, "beside": beside, "p99_us": [p99_alone, p99_beside]})


@contextlib.contextmanager
def _attack(kind: str, server: Server) -> Iterator[subprocess.Popen[str]]:
    """Run an attack, which has begun when the context is entered. Its schedules and jobs stay."""
    command = [sys.executable, str(HERE / "bomb_client.py"), kind]
    environment = {**servers.environment(), "MAINSPRING_SERVER": f"127.0.0.1:{server.port}"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as attack:
        assert attack.stdin is not None
        assert attack.stdout is not None
        try:
            if json.loads(attack.stdout.readline() or "null") != "begun":
                raise LoadError(f"the attack {kind} has not begun")
            yield attack
        finally:
            attack.stdin.close()  # so that it ends
