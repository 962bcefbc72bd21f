"""A client and a worker in another language, written only from docs/reference/protocol.md."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .servers import Server

SCENARIO = Path(__file__).parents[1] / "interop" / "extension_client" / "scenario.mjs"


def test_the_specification_is_enough(healthy: Server, require: Callable[[str], str]) -> None:
    done = subprocess.run(
        [require("node"), str(SCENARIO), str(healthy.port)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    cancelled = seen.pop("cancelled")
    stopped = seen.pop("stopped")
    timeout = seen.pop("timeout")
    cancelled_result = seen.pop("cancelledResult")
    watched = [state for state in seen.pop("watched") if state not in {"pending", "leased"}]
    assert seen.pop("delay") >= 300
    assert seen == {
        "raw": [0, 1, 2, 0, 255],
        "again": [0, 1, 2, 0, 255],
        "unknown": "unknown",
        "flaky": ["succeeded", 3, None, "3"],
        "hopeless": ["failed", 1, {"type": "Hopeless", "message": "never"}, ""],
        "patient": ["succeeded", 1, None, "1"],
        "delayed": ["succeeded", 1, None, "later"],
        "beating": ["succeeded", 1, None, "alive"],
        "joined": [False, True, True],
        "shown": ["nobody", "u", "pending", "low", 1],
        "listed": [True],
        "retried": "pending",
        "conflict": "conflict",
        "notFound": "not_found",
        "usage": "usage",
        "refused": "INVALID_ARGUMENTS",
        "progress": ["status", "1", "2"],
        "asked": "running",
        "paused": ["nothing", ["succeeded", 1, None, "held"]],
        "batch": True,
        "reconnected": "across connections",
        "stale": 1,  # the settlement after the job's time-out
        "events": ["snoozed", "stopped: cancelled"],
    }
    assert (cancelled["state"], cancelled_result[:2]) == ("cancelled", ["cancelled", 0])
    assert cancelled_result[2]["message"] == "not needed"
    assert stopped[:2] == ["cancelled", 1]
    assert (timeout[0], timeout[2]["type"]) == ("failed", "Timeout")
    assert watched == ["running", "cancelled"]
