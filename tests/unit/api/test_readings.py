"""Values that are read once for all calls that need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.api.handlers.functions import Readings
from mainspring.callbacks import Callback, CallInProgress
from mainspring.errors import MainspringError, StoreFullError
from mainspring.testing import ManualClock

if TYPE_CHECKING:
    from mainspring.callbacks import Done, Failed


class Shelf:
    """Readings of a store that answers when the test lets it."""

    def __init__(self, most: int = 10) -> None:
        self.clock = ManualClock()
        self.asked: list[tuple[Done, Failed]] = []
        self.answers: list[Any] = []
        self.errors: list[MainspringError] = []
        self._readings: Readings[str, Any] = Readings(self.clock.monotonic, 5.0, most)

    def call(self, key: str = "a") -> CallInProgress:
        return CallInProgress(self._readings.get(key, self._read), self.answers.append, self.errors.append)

    async def _read(self) -> Any:
        return await Callback[Any](lambda done, failed: self.asked.append((done, failed)))


def test_one_reading_is_for_all_calls_until_it_is_old() -> None:
    shelf = Shelf()
    for _ in range(3):
        shelf.call()
    shelf.call("b")
    assert len(shelf.asked) == 2
    shelf.asked[0][0](7)
    assert shelf.answers == [7, 7, 7]
    shelf.clock.advance(4.9)
    shelf.call()
    assert shelf.answers == [7, 7, 7, 7]
    shelf.clock.advance(0.1)
    shelf.call()
    assert (len(shelf.answers), len(shelf.asked)) == (4, 3)


def test_a_failed_reading_fails_all_calls_and_is_not_kept() -> None:
    shelf = Shelf()
    shelf.call()
    shelf.call()
    shelf.asked[0][1](StoreFullError("full"))
    assert [str(one) for one in shelf.errors] == ["full", "full"]
    shelf.call()
    assert len(shelf.asked) == 2


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_call_reads_itself_if_the_reading_call_ends(is_broken: bool) -> None:
    shelf = Shelf()
    reader = shelf.call()
    shelf.call()
    shelf.call()
    if is_broken:
        with pytest.raises(KeyError):
            shelf.asked[0][1](KeyError("defect"))
    else:
        reader.end()
    assert len(shelf.asked) == 2, "one of the others reads for both"
    shelf.asked[1][0](7)
    assert shelf.answers == [7, 7]


def test_the_number_of_kept_values_is_bounded() -> None:
    shelf = Shelf(most=2)
    for place, key in enumerate("abc"):
        shelf.call(key)
        shelf.asked[place][0](key)
    shelf.call("c")
    shelf.call("b")
    assert len(shelf.asked) == 3
    shelf.call("a")
    assert len(shelf.asked) == 4
