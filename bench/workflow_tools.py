"""Figures of the tools around workflows: ``python bench/workflow_tools.py replay|year COUNT`` prints one as JSON.

``replay`` replays the golden histories so often; ``year`` runs a workflow of so many timers, one after another, in memory.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.goldens import programs, recorded

from mainspring import App, workflow
from mainspring.testing import in_memory
from mainspring.worker.workflows.replay_checks import replay_history

app = App()


@app.workflow
async def year(timers: int) -> int:
    for _ in range(timers):
        await workflow.sleep(timedelta(days=365) / timers)
    return timers


def replay(rounds: int) -> dict[str, float]:
    """Return the replayed events per second."""
    histories = list(recorded.read(recorded.files()))
    events = 0
    begun = time.perf_counter()
    for _ in range(rounds):
        for history in histories:
            found = replay_history(programs.app.registry, history)
            assert found.difference is None, found.difference
            events += found.events
    return {"events_per_second": events / (time.perf_counter() - begun)}


def run_a_year(timers: int) -> dict[str, float]:
    """Return the seconds from the start of the run to its result, and those of processor time."""
    with in_memory(app) as fleet:
        begun, used = time.perf_counter(), time.process_time()
        assert fleet.result(year.submit(timers)) == timers
        return {"seconds": time.perf_counter() - begun, "processor_seconds": time.process_time() - used}


if __name__ == "__main__":
    figure = {"replay": replay, "year": run_a_year}[sys.argv[1]](int(sys.argv[2]))
    print("\n" + json.dumps(figure))
