"""All tests run in memory, with a database of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from shop.app import app

from mainspring.testing import InMemory, in_memory
from shop import database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemory]:
    """Return a node and a worker with all tasks and workflows, whose schedules do not fire."""
    monkeypatch.setenv("SHOP_DATABASE", str(tmp_path / "shop.db"))
    database.receive("cat", 10)
    database.receive("owl", 1)
    with in_memory(app, schedules=False) as fleet:
        yield fleet
