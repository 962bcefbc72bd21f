"""An App whose tasks work like those that people look at: ``python viewers_app.py TASKS`` starts so many.

Each reports its progress and logs a line once a second. It prints their handles when all of them run.
"""

from __future__ import annotations

import json
import sys
import time

from mainspring import App, current_job

app = App()  # the server is in MAINSPRING_SERVER
STEPS = 100_000


@app.task
def watched(steps: int) -> None:
    """Take a step a second, until the worker ends."""
    for step in range(steps):
        current_job().progress(step, steps, f"step {step}")
        current_job().log.info("step %d of the work, with a text of a usual length", step, step=step)
        time.sleep(1)


if __name__ == "__main__":
    jobs = watched.submit_many([STEPS] * int(sys.argv[1]))
    while any(job.state not in {"leased", "running"} for job in jobs):
        time.sleep(0.05)
    print(json.dumps([job.handle for job in jobs]))
