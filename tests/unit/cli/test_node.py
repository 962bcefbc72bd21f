from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from mainspring.cli.node import run_loop

if TYPE_CHECKING:
    import pytest


async def reapers() -> int:
    """Return the number of tasks that reap orphans, once they have begun."""
    await asyncio.sleep(0)
    return [task.get_name() for task in asyncio.all_tasks()].count("mainspring orphans")


def test_only_the_first_process_of_a_container_reaps_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_loop(reapers()) == 0
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert run_loop(reapers()) == 1
