"""A node looks each second for signals that users have sent in SQL, and more rarely for refused ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

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

    def ask(self, query: FindSentSignals, done: Callable[[SentSignals], None], _: object) -> None:
        self.counted.append(query.counts_refused)
        done(SentSignals(self.signals, self.refused if query.counts_refused else None, 1, "no run"))

    def put(self, operation: DeliverSignals, done: Callable[[Delivered], None], _: object) -> None:
        self.refused += len(operation.sent)
        self.signals = []
        done(Delivered({}, {}))


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
