"""Lines that follow a commit: those of workflow code, with the report of a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.job_logs.model import Line
from mainspring.job_logs.service import EXPECTED_FOR, Delivery, LogService
from mainspring.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = 7


class Commits:
    """A queue of operations that takes none while the test runs."""

    groups = bytes = 0

    def put(self, *_: Any) -> None:
        raise AssertionError


class Logs:
    def __init__(self) -> None:
        self.clock = ManualClock()
        later: Callable[..., None] = lambda *_: None  # noqa: E731
        commits: Any = Commits()
        nothing: Any = None
        self.service = LogService(
            commits, nothing, self.clock, later, nothing, lambda: 1, retention=1.0, is_held=lambda _: True
        )
        self.delivery = Delivery(self, RUN, "default", b"order", 1, self.service.next_delivery())
        self.service.begin((b"h", b"t"), Delivery(self, RUN, "default", b"order", 1, 5))  # of an earlier step


@pytest.fixture
def logs() -> Logs:
    return Logs()


def test_readers_wait_for_them_until_the_commit(logs: Logs) -> None:
    """Otherwise a reader that sees the end of the run first would leave without its last lines."""
    assert logs.service.has_all(RUN)
    logs.service.expect(logs.delivery)
    assert not logs.service.has_all(RUN)
    logs.service.committed(logs.delivery, 1, [])
    assert logs.service.has_all(RUN), "the report was not recorded"
    logs.service.expect(logs.delivery)
    logs.service.committed(logs.delivery, 1, [Line(0, 1, "", "done")])
    assert logs.service.is_writing(RUN)


def test_readers_do_not_wait_for_ever(logs: Logs) -> None:
    logs.service.expect(logs.delivery)
    logs.clock.advance(EXPECTED_FOR)
    assert logs.service.has_all(RUN)
