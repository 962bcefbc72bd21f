"""The renderer takes hours in these tests, and they take milliseconds."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING

import pytest

from app import app, render, start, state, stop
from mainspring import JobCancelled, JobFailed
from mainspring.testing import InMemory, in_memory

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def fleet() -> Iterator[InMemory]:
    with in_memory(app) as fleet:
        fleet.mock(start, None)
        yield fleet


def test_a_video_is_rendered_after_hours(fleet: InMemory) -> None:
    begun, polls = fleet.now, count(1)

    def answer(_key: str) -> str:
        next(polls)
        return "done" if fleet.now - begun > timedelta(hours=2) else "running"

    fleet.mock(state, answer)
    assert fleet.result(render.submit("cats")) == "cats.mp4"
    assert next(polls) < 150, "the pause grows up to a minute"


def test_a_renderer_that_is_away_for_a_while_is_asked_again(fleet: InMemory) -> None:
    answers = iter([ConnectionError("away"), ConnectionError("away"), "done"])

    def answer(_key: str) -> str:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    fleet.mock(state, answer)
    assert fleet.result(render.submit("cats")) == "cats.mp4"


def test_a_video_that_takes_too_long_is_cancelled(fleet: InMemory) -> None:
    stopped: list[str] = []
    fleet.mock(state, "running")
    fleet.mock(stop, stopped.append)
    with pytest.raises(JobFailed, match="TimeoutError"):
        fleet.result(render.submit("cats", hours=1))
    assert len(stopped) == 1


def test_a_cancelled_run_cancels_the_video(fleet: InMemory) -> None:
    stopped: list[str] = []
    fleet.mock(state, "running")
    fleet.mock(stop, stopped.append)
    job = render.submit("cats")
    fleet.advance("10m")
    fleet.crash_worker()
    job.cancel()
    with pytest.raises(JobCancelled):
        fleet.result(job)
    assert len(stopped) == 1
