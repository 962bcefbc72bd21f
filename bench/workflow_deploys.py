"""Runs at a steady rate while their workers are replaced one by one: the p99 of their time, divided by the p99 without that."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import processes
import python_api
from admin import connect, counts, decisions
from generator import LoadError
from measure import Cell, Run, Scale, Side
from servers import StartError

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import Contestant, Server

HERE = Path(__file__).resolve().parent
APP = HERE / "deployed_app.py"
RATE = 20
"""Runs per second: a part of what the nodes can do, so that the time of a run is no queue's."""
WORKERS = 3
SECONDS = 20.0
"""Seconds of the steady phase; workers are replaced for as long at least."""
START_SECONDS = 30.0


def cell(key: str, store: str, contestant: Contestant) -> Cell:
    """Return the cell for a store."""
    return Cell(
        key=key,
        measure=f"workflows of one activity, {RATE} a second, on {store}, while {WORKERS} workers are replaced one by one: p99",
        required="3 x steady",
        unit="x",
        sides=(Side(f"mainspring {store}", contestant, deploys),),
        under=3.0,
    )


def deploys(server: Server, scale: Scale) -> Run:
    """Start runs, first with the same workers for a while, then while each worker is replaced by the next generation in turn."""
    seconds = SECONDS if not scale.quick else SECONDS / 5
    environment = python_api.environment(server)
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(contextlib.ExitStack()) for _ in range(WORKERS)]
        await_workers = _registrations(server)
        for number, worker in enumerate(workers):
            _start(worker, server, number, 1)
        await_workers(WORKERS)
        client = stack.enter_context(
            subprocess.Popen(
                [sys.executable, str(HERE / "deploy_client.py"), str(RATE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
        )
        stack.callback(client.kill)
        assert client.stdin is not None
        time.sleep(seconds / 4)
        _say(client, "steady")
        time.sleep(seconds)
        _say(client, "deploy")
        until, generation = time.monotonic() + seconds, 1
        while time.monotonic() < until:
            generation += 1
            for number, worker in enumerate(workers):
                worker.close()
                _start(worker, server, number, generation)
                await_workers(WORKERS)
        written, _ = client.communicate(timeout=2 * START_SECONDS)
        if client.returncode:
            raise LoadError("the client has failed")
    figures = json.loads(written)
    replaced = WORKERS * (generation - 1)
    return Run(figures["deploy"]["p99_ms"] / figures["steady"]["p99_ms"], {**figures, "replaced": replaced})


def _say(client: subprocess.Popen[str], phase: str) -> None:
    assert client.stdin is not None
    client.stdin.write(f"{phase}\n")
    client.stdin.flush()


def _start(stack: contextlib.ExitStack, server: Server, number: int, generation: int) -> None:
    """Start a worker with a generation of the program; it gets SIGTERM when the stack is closed."""
    directory = server.directory / f"generation-{generation}"
    directory.mkdir(exist_ok=True)
    program = directory / APP.name
    program.write_text(APP.read_text().replace("GENERATION = 1\n", f"GENERATION = {generation}\n"))
    command = [sys.executable, "-m", "mainspring", "worker", str(program)]
    log = server.directory / f"worker-{number}-{generation}.log"
    stack.enter_context(processes.running(command, log, python_api.environment(server)))


def _registrations(server: Server) -> Callable[[int], None]:
    """Return a function that waits until a number of workers decide about runs at the first node."""
    address = python_api.environment(server)["MAINSPRING_SERVER"]

    def wait(number: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        with connect(address) as connection:
            while counts(connection, decisions("deployed")).workers != number:
                if time.monotonic() > deadline:
                    logs = "".join(log.read_text()[-500:] for log in server.directory.glob("worker-*.log"))
                    raise StartError(f"a worker did not start: {logs}")
                time.sleep(0.02)

    return wait
