"""The watch over the group under way."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mainspring.engines.postgres import writer as module
from mainspring.engines.postgres.writer import Watch


@pytest.mark.parametrize(
    ("busy", "began", "pause"),
    [
        (False, 1.0, 5.0),  # no group is under way
        (True, 10.0, 5.0),
        (True, 7.0, 2.0),  # it began after the last look, and is not looked at only after a whole further pause
        (True, 5.0, 0.0),
        (True, 1.0, 0.0),
    ],
)
def test_a_group_is_looked_at_when_it_has_taken_too_long_since_its_begin(
    busy: bool, began: float, pause: float
) -> None:
    unused: Any = None
    writer: Any = SimpleNamespace(busy=busy, began=began)
    assert Watch(unused, writer, slow=5.0).pause(10.0) == pause


WAITS = {"waits": True, "state_change": 1}


@pytest.mark.parametrize(
    ("rows", "dropped"),
    [
        ([WAITS, WAITS], True),
        ([WAITS, None], True),  # the server has ended it: it was idle in its transaction for too long
        ([None, None], True),
        ([WAITS, WAITS | {"state_change": 2}], False),
        ([WAITS, WAITS | {"waits": False}], False),
        ([None, WAITS], False),
    ],
)
def test_a_session_that_waits_for_the_node_or_is_gone_is_dropped(
    monkeypatch: pytest.MonkeyPatch, rows: list[Any], dropped: bool
) -> None:
    monkeypatch.setattr(module, "RECHECK_DELAY", 0.0)
    given_up: list[bool] = []
    left = iter(rows)

    async def run(*_: object) -> Any:
        return next(left)

    control: Any = SimpleNamespace(run=run)
    writer: Any = SimpleNamespace(busy=True, attempts=3, pid=7, give_up=lambda: given_up.append(True))
    assert asyncio.run(Watch(control, writer).check(3)) is dropped
    assert given_up == [True] * dropped
