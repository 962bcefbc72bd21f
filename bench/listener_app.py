"""An App with a listener, if LISTENS_TO names types of events: ``python listener_app.py rate|latency JOBS`` is its client.

`rate`: `submit_many` of jobs of which one in a hundred fails, until they and all deliveries have ended. `latency`: jobs that
fail, one each 20 ms; the listener writes the seconds from each event to its own start to the file LATENCIES.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from admin import connect, counts

from mainspring import App, Event, Retry

app = App(name="listeners")  # the server is in MAINSPRING_SERVER
FAILS = 100
"""One job of so many fails."""
PAUSE = 0.02
TIMEOUT = 60.0


@app.task
def work(number: int) -> None:
    """Do nothing, or fail."""
    if number % FAILS == 0:
        raise ValueError("one of many")


if types := os.environ.get("LISTENS_TO"):

    @app.on(*types.split(), retry=Retry(max_attempts=1))
    def tell(event: Event) -> None:
        """Write how old the event is."""
        path = os.environ.get("LATENCIES")
        if path is not None and event.time is not None:
            with Path(path).open("a") as file:
                file.write(f"{time.time() - event.time.timestamp()}\n")


def await_end(begun: float) -> None:
    """Wait until no job is left. Raises TimeoutError."""
    with connect() as server:
        while counts(server, "work").jobs or counts(server, "tell").jobs:
            if time.perf_counter() - begun > TIMEOUT:
                raise TimeoutError(f"after {TIMEOUT:.0f} s jobs are left")
            time.sleep(0.005)


def main() -> None:
    """Run the client."""
    mode, jobs = sys.argv[1], int(sys.argv[2])
    begun = time.perf_counter()
    if mode == "rate":
        work.submit_many(range(1, jobs + 1))
    else:
        for _ in range(jobs):
            work.submit(0)
            time.sleep(PAUSE)
    await_end(begun)
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "rate": jobs / seconds}))


if __name__ == "__main__":
    main()
