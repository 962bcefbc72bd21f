"""An App whose tasks log: ``python log_app.py TASKS LINES`` starts so many tasks that log so many lines a second each.

It prints their handles when all of them run.
"""

from __future__ import annotations

import json
import sys
import time

from mainspring import App, current_job

app = App()  # the server is in MAINSPRING_SERVER


@app.task
def talk(lines: float) -> None:
    """Log so many lines a second, until the worker ends."""
    log = current_job().log
    begun, number = time.monotonic(), 0
    while True:
        while number < (time.monotonic() - begun) * lines:
            number += 1
            log.info("step %d of the work, with a text of a usual length", number, step=number)
        time.sleep(0.01)


if __name__ == "__main__":
    tasks, lines = int(sys.argv[1]), float(sys.argv[2])
    jobs = talk.submit_many([lines] * tasks)
    while any(job.state not in {"leased", "running"} for job in jobs):
        time.sleep(0.05)
    print(json.dumps({"handles": [job.handle for job in jobs]}))
