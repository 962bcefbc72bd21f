"""Failed assertions inside the suite show their values, as they do in test modules."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainspring.engines.zookeeper import claiming, cluster, master_dispatching
from tests.postgres.server import memory_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.register_assert_rewrite("tests.conformance.suite")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a directory in memory: thousands of commits would wait for a disk, on which nothing here depends."""
    with tempfile.TemporaryDirectory(prefix="mainspring-", dir=memory_directory()) as directory:
        yield Path(directory)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims on an ensemble are answered when all was looked at, which is soon, however late a busy machine elects a master.

    And its clock, by which the master wakes what is due, stands before all times of the suites.
    """

    async def begins(*_: object) -> float:
        return 0.0

    monkeypatch.setattr(cluster, "now", begins)
    monkeypatch.setattr(claiming, "CLAIM_TIMEOUT", 20.0)
    monkeypatch.setattr(master_dispatching, "ANSWER_TIMEOUT", 20.0)
    monkeypatch.setattr(master_dispatching, "SINGLE_NODE_DELAY", 0.01)
