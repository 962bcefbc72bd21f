"""An App with a task that uses a slot of a resource, others that do the same without, and the client of all.

    python holds_app.py held|free|limited JOBS      (the server is in MAINSPRING_SERVER, the number of slots in SLOTS)

The client submits the jobs and WAITING more, and prints the figures of the time until only these are left: jobs per second, and
microseconds of processor time for each job of the processes in PROCESSES (``NAME=PID,…``, with their children).
"""

from __future__ import annotations

import json
import os
import sys
import time

import processor_time
from admin import connect, counts

from mainspring import App

app = App(name="holds")  # the server is in MAINSPRING_SERVER
licences = app.resource("licence", total=int(os.environ.get("SLOTS", "1000")))
WAITING = 1000
TIMEOUT = 60.0
POLL_SECONDS = 0.02
"""Each look at the number of jobs visits those in the node's memory."""


@app.task(uses={licences: 1})
def held() -> None:
    """Do nothing, with a slot."""


@app.task
def free() -> None:
    """Do nothing, without one."""


@app.task(concurrency=int(os.environ.get("SLOTS", "1000")))
def limited() -> None:
    """Do nothing, under a limit that is as high as the number of slots."""


def _used() -> dict[str, float]:
    processes = dict(one.split("=") for one in os.environ["PROCESSES"].split(","))
    return {name: processor_time.seconds(int(pid)) for name, pid in processes.items()}


def main() -> None:
    """Run the client."""
    name, jobs = sys.argv[1], int(sys.argv[2])
    task = {"held": held, "free": free, "limited": limited}[name]
    with connect() as server:
        task.submit_many(() for _ in range(jobs + WAITING))
        begun, first, used = time.perf_counter(), counts(server, name).jobs, _used()
        while (left := counts(server, name).jobs) > WAITING:
            if time.perf_counter() - begun > TIMEOUT:
                raise TimeoutError(f"after {TIMEOUT:.0f} s {left} jobs are left")
            time.sleep(POLL_SECONDS)
        seconds, ended = time.perf_counter() - begun, first - left
        each = {f"{process}_us": round((now - used[process]) / ended * 1e6, 1) for process, now in _used().items()}
    print(json.dumps({"seconds": seconds, "ended": ended, "rate": ended / seconds, **each}))


if __name__ == "__main__":
    main()
