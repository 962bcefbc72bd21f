"""A node looks each second for signals that users have sent in SQL, and more rarely for refused ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from mainspring.jobs.store import SIGNS_LAST
from mainspring.storage.reads import SetAside
from mainspring.testing.passing_time import ManualClock
from mainspring.workflows.sent_signals import LOOK_INTERVAL, REFUSED_INTERVAL, SignalLoop
from mainspring.workflows.store import Delivered, DeliverSignals, FindSentSignals, SentSignal, SentSignals

if TYPE_CHECKING:
    from collections.abc import Callable


class Store:
    """Answers at once, as the engine does."""

    def __init__(self) -> None:
        self.signals: list[SentSignal] = []
        self.counted: list[bool] = []
        self.refused = 0
        self.elsewhere = False
        """Whether another node passes the same signals on."""

    def ask(self, query: FindSentSignals, done: Callable[[SentSignals], None], _: object) -> None:
        self.counted.append(query.counts_refused)
        done(SentSignals(self.signals, self.refused if query.counts_refused else None, 1, "no run"))

    def put(self, operation: DeliverSignals, done: Callable[[Delivered], None], _: object) -> None:
        self.refused += len(operation.sent)
        self.signals = []
        done(Delivered({}, {}, self.elsewhere))


def test_refused_signals_are_counted_after_each_delivery_and_now_and_then() -> None:
    store, clock = Store(), ManualClock()
    port = cast("Any", store)
    aside = SetAside(clock)
    loop = SignalLoop(
        port, port, clock, paused=lambda: False, looks=lambda: True, set_aside=aside, tasks=(), paused_functions=(),
    )  # fmt: skip
    looks = round(REFUSED_INTERVAL / LOOK_INTERVAL)
    for _ in range(looks + 1):
        loop.tick()
        clock.advance(LOOK_INTERVAL)
    assert store.counted == [True, *[False] * (looks - 1), True]
    assert aside.is_empty
    store.counted.clear()
    store.signals = [SentSignal(1, "default", "r", "s", "", b"")]
    loop.tick()
    assert store.counted == [False, True], "it was refused"
    assert not aside.is_empty
    for _ in range(looks):
        clock.advance(LOOK_INTERVAL)
        loop.tick()
        assert not aside.is_empty, "not counted is not none"


class Desk:
    """A node with a loop, which looks by itself or not."""

    def __init__(self, *, looks: bool) -> None:
        self.store, self.clock = Store(), ManualClock()
        port = cast("Any", self.store)
        self.loop = SignalLoop(
            port, port, self.clock, paused=lambda: False, looks=lambda: looks, set_aside=SetAside(self.clock),
            tasks=(), paused_functions=(),
        )  # fmt: skip
        self.loop.tick()
        self.store.counted.clear()

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.25)):
            self.clock.advance(0.25)
            self.loop.tick()


def test_signs_take_the_place_of_looks() -> None:
    desk = Desk(looks=True)
    for _ in range(6):
        desk.loop.read_sign(False)
        desk.wait(3)
    assert desk.store.counted == [True], "refused signals are counted as before"
    desk.wait(SIGNS_LAST)
    before = len(desk.store.counted)
    desk.wait(3 * LOOK_INTERVAL)
    assert len(desk.store.counted) >= before + 3, "without signs, the node looks by itself"


def test_each_node_passes_on_what_signs_tell() -> None:
    desk = Desk(looks=False)
    desk.store.signals = [SentSignal(1, "default", "r", "s", "", b"")]
    desk.loop.read_sign(True)
    assert desk.store.signals == []
    desk.store.signals = [SentSignal(2, "default", "r", "s", "", b"")]
    desk.wait(5)
    assert desk.store.signals, "one node looks by itself, and others do not"


@pytest.mark.parametrize("looks", [True, False])
def test_of_two_nodes_that_pass_signals_on_one_goes_on(*, looks: bool) -> None:
    desk = Desk(looks=looks)
    desk.store.signals = [SentSignal(1, "default", "r", "s", "", b"")]
    desk.store.elsewhere = True
    desk.loop.read_sign(True)
    assert len(desk.store.counted) == (2 if looks else 1)
