from __future__ import annotations

import time
from pathlib import Path

import pytest
import structlog

from mainspring import App, SettingsError
from mainspring.worker.functions import check_workflows

app = App()


def elapsed() -> float:
    return time.time()


@app.workflow
async def slow() -> float:
    return elapsed() + time.monotonic()


@app.workflow(name="slow", version="2")
async def slow_too() -> float:
    return elapsed()


def test_code_that_cannot_be_repeated_is_logged_at_the_start() -> None:
    with structlog.testing.capture_logs() as logged:
        app.worker(servers=())
    found = [(line["function"], line["log_level"], line["at"].rpartition(":")[0]) for line in logged]
    assert found == [("slow", "warning", __file__), ("elapsed", "warning", __file__)], "the shared function once"
    assert all("workflow.now()" in line["problem"] for line in logged)


def test_strict_workers_refuse_it() -> None:
    name = Path(__file__).name
    with pytest.raises(SettingsError, match=rf"that a replay cannot repeat: .*{name}:\d+: in slow: .*; .*in elapsed: "):
        check_workflows(app.registry, strict=True)
    check_workflows(App().registry, strict=True)
