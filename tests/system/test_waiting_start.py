"""A node that starts without its store waits for it, and can be stopped during the wait."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from tests import commands

from .processes import command, environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_that_waits_for_its_store_can_be_stopped(tmp_path: Path, free_port: int, number: signal.Signals) -> None:
    store = f"postgresql://postgres@127.0.0.1:{free_port}/jobs"
    process = commands.start(
        command("serve", "--store", store, "--gearman", "none"), stderr=subprocess.PIPE, cwd=tmp_path, env=environment()
    )
    try:
        assert process.stderr is not None
        assert b"waiting for it" in process.stderr.readline()
        signalled = time.monotonic()
        process.send_signal(number)
        assert process.wait(30) == 0
        assert time.monotonic() - signalled < 15
        rest = process.stderr.read()
        assert b"stopped before it had started" in rest
        assert b"Traceback" not in rest
    finally:
        process.kill()
        process.communicate()
