"""Whole processes whose wall clocks are stepped while they run: a worker's, and a node's that is corrected."""

from __future__ import annotations

import contextlib
import subprocess
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conftest import leave_out

from mainspring.client.blocking import Client
from mainspring.client.environment import parse_servers
from mainspring.errors import NotFoundError

from .fleet_clocks import FAKETIME_LIBRARIES, FakedClock
from .processes import command, environment, node
from .wrong_clock_app import app, go, sleeps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAM = Path(__file__).with_name("wrong_clock_app.py")
TIMEOUT = 90.0
HOUR = 3600.0
DAY = 86_400.0
TEN_YEARS = 3650 * DAY


@contextlib.contextmanager
def worker(server: str, directory: Path, clock: FakedClock) -> Iterator[None]:
    with (directory / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            command("worker", str(PROGRAM), "--server", server),
            cwd=directory,
            env=environment(**clock.variables),
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(condition: Callable[[], Any]) -> Any:
    """Return the first true value of a condition."""
    end = time.monotonic() + TIMEOUT
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return value


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_stepped_clocks_of_a_worker_and_of_a_node(tmp_path: Path) -> None:
    if not FAKETIME_LIBRARIES:
        leave_out("libfaketime")
    of_node, of_worker = FakedClock(tmp_path / "node clock"), FakedClock(tmp_path / "worker clock")
    with contextlib.ExitStack() as stack:
        options = ("--store", "sqlite:///jobs.db", "--gearman", "127.0.0.1:0", "--name", "n")
        running = stack.enter_context(
            node("serve", *options, cwd=tmp_path, faces=("gearman",), worker=False, **of_node.variables)
        )
        stack.enter_context(worker(running.address, tmp_path, of_worker))
        client = Client(parse_servers(running.address))
        stack.callback(client.close)
        stack.callback(app.connect_to, app.connect_to(running.address))

        def begun() -> Any:
            """Return a new run that waits for its signal."""
            job = sleeps.submit()
            until(lambda: waits(job))
            return job

        def waits(job: Any) -> bool:
            try:
                return "go" in job.details()["waits_for"]
            except NotFoundError:  # no run yet: the worker has not registered the workflow
                return False

        # A worker that is a day ahead, and then a day behind, dates and fires nothing.
        for offset in ("+1d", "-1d"):
            job = begun()
            of_worker.set(offset)
            job.signal(go, "on")
            assert job.result(TIMEOUT) is False
            events = client.call("workflows.history", {"key": job.handle})["items"]
            assert all(abs(event["eventTimestamp"] - time.time()) < HOUR / 2 for event in events)
        of_worker.set("+0")

        # The node's clock is two hours ahead for a moment; a run and a schedule get times of it.
        client.call("schedules.add", {"name": "tick", "function": "tick", "cron": "* * * * * *", "misfire": "skip"})

        def fired(before: float) -> float:
            """Return the last time before another one that the schedule has fired for."""
            rows = client.call("schedules.history", {"name": "tick", "limit": 100})["items"]
            times = (seconds(row["fire_time"]) for row in rows if row["state"] == "fired")
            return max((time for time in times if time < before), default=0.0)

        until(lambda: fired(time.time()))
        of_node.set("+2h")
        until(lambda: fired(time.time() + 3 * HOUR) > time.time() + HOUR)
        job = begun()
        of_node.set("+0")
        corrected = time.time()
        job.signal(go, "on")
        assert job.result(TIMEOUT) is False, "a sleep of a second ends, and one of an hour does not"
        until(lambda: fired(time.time()) > corrected)
        assert "the clock was set back" in running.log.read_text()

        # Ten years ahead: the times that are missed share one row, and the present fires.
        of_node.set(f"+{TEN_YEARS / DAY:.0f}d")
        until(lambda: fired(time.time() + TEN_YEARS + DAY) > time.time() + TEN_YEARS - HOUR)
        of_node.set("+0")
        corrected = time.time()
        until(lambda: fired(time.time()) > corrected)
        rows = client.call("schedules.history", {"name": "tick", "limit": 1000})["items"]
        (missed,) = (row for row in rows if row["until"] and seconds(row["until"]) > time.time() + TEN_YEARS / 2)
        assert (missed["state"], missed["reason"]) == ("skipped", "misfire")
