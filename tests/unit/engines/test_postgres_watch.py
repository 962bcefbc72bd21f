"""The watch over the group under way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

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
