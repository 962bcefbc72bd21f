"""Runs of these tests leave the memory with their test: otherwise the end of the process logs their lost errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.workflow_code.instance import Instance

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


@pytest.fixture(autouse=True)
def evicted_at_the_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Evict the runs that a test leaves."""
    instances: list[Instance] = []
    begin = Instance.__init__

    def __init__(instance: Instance, *args: Any, **named: Any) -> None:  # noqa: N807 - it replaces this method
        instances.append(instance)
        begin(instance, *args, **named)

    monkeypatch.setattr(Instance, "__init__", __init__)
    yield
    for instance in instances:
        instance.evict()
