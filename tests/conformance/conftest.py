"""Failed assertions inside the shipped suite show their values, as they do in test modules."""

from __future__ import annotations

import pytest

from mainspring.engines.zookeeper import claiming

pytest.register_assert_rewrite("mainspring.testing.conformance")


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims on an ensemble wait for a master, however late a busy machine elects it."""
    monkeypatch.setattr(claiming, "PATIENCE", 20.0)
