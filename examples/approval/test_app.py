"""Days of waiting for people, in milliseconds."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from app import Request, Vote, app, approval, say, votes
from mainspring.testing import InMemory, in_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

TRIP = Request("a trip to Oslo for 800 euros", ["eva", "tom", "kim"])


@pytest.fixture
def chat() -> list[str]:
    return []


@pytest.fixture
def fleet(chat: list[str]) -> Iterator[InMemory]:
    with in_memory(app) as fleet:
        fleet.mock(say, chat.append)
        yield fleet


def test_two_people_approve(fleet: InMemory, chat: list[str]) -> None:
    run = approval.options(id="trip-7").submit(TRIP)
    run.signal(votes, Vote("eva", True))
    run.signal(votes, Vote("eva", True))
    run.signal(votes, Vote("max", True))
    fleet.advance("5h")
    fleet.crash_worker()
    run.signal(votes, Vote("kim", True))
    assert fleet.result(run) is True
    assert chat == [
        "eva, tom, kim: trip-7: a trip to Oslo for 800 euros?",
        "max: you are not asked about trip-7",
        "tom, kim: trip-7 waits for you",
        "trip-7 is approved by eva, kim",
    ]


def test_one_refusal_is_enough(fleet: InMemory, chat: list[str]) -> None:
    run = approval.options(id="trip-7").submit(TRIP)
    run.signal(votes, Vote("eva", True))
    run.signal(votes, Vote("tom", False))
    assert fleet.result(run) is False
    assert chat[-1] == "trip-7 is refused by tom"


def test_silence_is_a_refusal_after_six_reminders(fleet: InMemory, chat: list[str]) -> None:
    begun = fleet.now
    assert fleet.result(approval.options(id="trip-7").submit(TRIP)) is False
    assert chat[1:] == ["eva, tom, kim: trip-7 waits for you"] * 6 + ["trip-7 has expired"]
    assert fleet.now - begun >= timedelta(hours=28)
