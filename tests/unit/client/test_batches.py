from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.client.outcomes import Outcome
from mainspring.client.session import (
    OUTCOMES_IN_FLIGHT,
    WINDOWS_IN_FLIGHT,
    Request,
    SubmitBatch,
    Wait,
    awaiting,
    submitting,
    windows,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ENDED = Outcome("H:n:1", "succeeded", 1, None, b"")


def test_windows_are_bounded() -> None:
    assert [len(window) for window, _ in windows([Request(b"f", b"", b"", b"")] * 4500)] == [2000, 2000, 500]
    large = Request(b"f", b"u", b"", b"x" * 600_000)
    assert [(len(window), safe) for window, safe in windows([large] * 3)] == [(2, True), (1, True)]


def test_a_window_may_be_sent_twice_if_each_of_its_requests_may() -> None:
    named, nameless = Request(b"f", b"u", b"", b""), Request(b"f", b"", b"", b"")
    assert [safe for _, safe in windows([nameless, named])] == [False]
    assert [safe for _, safe in windows([named, nameless])] == [False]


def test_windows_overlap_and_keep_their_order() -> None:
    sent: list[SubmitBatch] = []

    def submit(frames: list[bytes], safe: bool) -> SubmitBatch:
        sent.append(SubmitBatch(frames, safe=safe))
        return sent[-1]

    given = submitting([Request(b"f", b"u", b"", b"")] * 9000, submit)
    for number, batch in enumerate(given):
        assert batch is sent[number]
        assert batch.safe
        assert len(sent) == min(number + WINDOWS_IN_FLIGHT, 5), "windows overlap while one is waited for"
    assert [len(batch.frames) for batch in sent] == [2000, 2000, 2000, 2000, 1000]


class Requests:
    """The caller of `awaiting`: records the requested and the forgotten waits."""

    def __init__(self, count: int) -> None:
        self.waits: list[Wait] = []
        self.forgotten: list[Wait] = []
        self.counts: list[int] = []
        self.given = awaiting((f"H:n:{number}" for number in range(count)), self._wait, self._forget)

    def _wait(self, handles: list[str]) -> Iterator[Wait]:
        self.counts.append(len(handles))
        waits = [Wait(handle.encode(), None) for handle in handles]
        self.waits += waits
        return iter(waits)

    def _forget(self, waits: Iterable[Wait]) -> None:
        self.forgotten += waits


def test_outcomes_are_requested_ahead_and_arrive_in_order() -> None:
    requests = Requests(2500)
    for number, wait in enumerate(requests.given):
        assert wait is requests.waits[number]
        assert len(requests.waits) - number <= OUTCOMES_IN_FLIGHT
        if not wait.done:  # the server answers ten at a time
            for other in requests.waits[number : number + 10]:
                other.resolve(ENDED)
    assert len(requests.waits) == 2500
    assert requests.forgotten == []
    assert requests.counts[0] == OUTCOMES_IN_FLIGHT
    assert set(requests.counts[1:]) == {10}, "each request covers all outcomes that were answered since the last"


def test_closing_the_generator_forgets_the_open_waits() -> None:
    requests = Requests(3)
    next(requests.given).resolve(ENDED)
    second = next(requests.given)
    requests.given.close()
    assert requests.forgotten == requests.waits[1:]
    assert second is requests.forgotten[0]


def test_no_jobs_make_no_requests() -> None:
    requests = Requests(0)
    assert list(requests.given) == []
    assert requests.counts == []
    assert list(submitting([], lambda frames, safe: SubmitBatch(frames, safe=safe))) == []
