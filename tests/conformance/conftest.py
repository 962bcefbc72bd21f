"""Failed assertions inside the shipped suite show their values, as they do in test modules."""

from __future__ import annotations

import pytest

from mainspring.engines.zookeeper import claiming
from mainspring.engines.zookeeper.master import dispatching

pytest.register_assert_rewrite("mainspring.testing.conformance")


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims on an ensemble are answered when all was looked at, which is soon, however late a busy machine elects a master."""
    monkeypatch.setattr(claiming, "PATIENCE", 20.0)
    monkeypatch.setattr(dispatching, "ANSWER", 20.0)
    monkeypatch.setattr(dispatching, "ALONE", 0.01)
