from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.client.batches import OUTCOMES_IN_FLIGHT, WINDOWS_IN_FLIGHT, awaiting, submitting, windows
from mainspring.client.outcomes import Outcome
from mainspring.client.session import Request, SubmitBatch, Wait

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ENDED = Outcome("H:n:1", "succeeded", 1, None, b"")


def test_windows_are_bounded() -> None:
    assert [len(window) for window, _ in windows([Request(b"f", b"", b"", b"")] * 4500)] == [2000, 2000, 500]
    large = Request(b"f", b"u", b"", b"x" * 600_000)
    assert [(len(window), safe) for window, safe in windows([large] * 3)] == [(2, True), (1, True)]


def test_windows_overlap_and_come_in_order() -> None:
    sent: list[SubmitBatch] = []

    def submit(frames: list[bytes], safe: bool) -> SubmitBatch:
        sent.append(SubmitBatch(frames, safe=safe))
        return sent[-1]

    given = submitting([Request(b"f", b"u", b"", b"")] * 9000, submit)
    for number, batch in enumerate(given):
        assert batch is sent[number]
        assert batch.safe
        assert len(sent) == min(number + WINDOWS_IN_FLIGHT, 5), "so many are under way while one is waited for"
    assert [len(batch.frames) for batch in sent] == [2000, 2000, 2000, 2000, 1000]


class Asked:
    """The other side of `awaiting`: what was asked for, and what was forgotten."""

    def __init__(self, count: int) -> None:
        self.waits: list[Wait] = []
        self.forgotten: list[Wait] = []
        self.questions: list[int] = []
        self.given = awaiting((f"H:n:{number}" for number in range(count)), self._wait, self._forget)

    def _wait(self, handles: list[str]) -> Iterator[Wait]:
        self.questions.append(len(handles))
        made = [Wait(handle.encode(), None) for handle in handles]
        self.waits += made
        return iter(made)

    def _forget(self, waits: Iterable[Wait]) -> None:
        self.forgotten += waits


def test_outcomes_are_asked_for_ahead_and_come_in_order() -> None:
    asked = Asked(2500)
    for number, wait in enumerate(asked.given):
        assert wait is asked.waits[number]
        assert len(asked.waits) - number <= OUTCOMES_IN_FLIGHT
        if not wait.done:  # the server answers ten at a time
            for other in asked.waits[number : number + 10]:
                other.resolve(ENDED)
    assert len(asked.waits) == 2500
    assert asked.forgotten == []
    assert asked.questions[0] == OUTCOMES_IN_FLIGHT
    assert set(asked.questions[1:]) == {10}, "as many more as were answered, and no question for each"


def test_who_stops_waiting_leaves_nothing_behind() -> None:
    asked = Asked(3)
    next(asked.given).resolve(ENDED)
    second = next(asked.given)
    asked.given.close()
    assert asked.forgotten == asked.waits[1:]
    assert second is asked.forgotten[0]


def test_no_jobs_ask_for_nothing() -> None:
    asked = Asked(0)
    assert list(asked.given) == []
    assert asked.questions == []
    assert list(submitting([], lambda frames, safe: SubmitBatch(frames, safe=safe))) == []
