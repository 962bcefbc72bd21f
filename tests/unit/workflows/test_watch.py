from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from structlog.testing import capture_logs

from mainspring.event_log.types import RUN_STRANDED, StrandedFields
from mainspring.jobs.model import State
from mainspring.jobs.store import Count
from mainspring.testing.passing_time import ManualClock
from mainspring.workflows.model import Definition, Status, decision_function
from mainspring.workflows.observers import Changed
from mainspring.workflows.store import FindVersions, ForgetRuns, SweepEarlySignals, UnparkRuns, Versions
from mainspring.workflows.watch import (
    BATCH,
    FORGET_DELAY,
    FORGET_INTERVAL,
    LOOK_INTERVAL,
    NOTE_INTERVAL,
    SHARED_COUNT_INTERVAL,
    STRANDED_AFTER,
    UNPARK_INTERVAL,
    WARNING_INTERVAL,
    Watch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.event_log.interests import NewEvent
    from mainspring.storage.engine import Operation

BUILD = ("default", "order", "1", "b2")


class Store:
    """Answers operations and queries at once."""

    def __init__(self, **parked: int) -> None:
        self.parked = {("default", "order", version[1:]): number for version, number in parked.items()}
        self.definitions: list[Definition] = []
        self.counts: dict[tuple[bytes, int, int], int] = {}
        self.counted = 0
        self.queries = 0
        self.operations: list[Operation] = []
        self.answers: list[int] = []
        self.kept: list[Sequence[Definition]] = []

    def ask(self, query: object, done: Callable[[Any], None], _: object) -> None:
        self.queries += 1
        parked = dict(self.parked)
        done(Versions(list(self.definitions), parked) if isinstance(query, FindVersions) else parked)

    def put(self, operation: Operation, done: Callable[[Any], None], *_: object) -> None:
        if isinstance(operation, Count):
            self.counted += 1
            done({key: number for key, number in self.counts.items() if key[0] in (operation.functions or ())})
            return
        self.operations.append(operation)
        done(self.answers.pop(0) if self.answers else 0)


def opened(
    store: Store,
    *,
    is_shared: bool = False,
    events: object = None,
    first: Callable[[str], bool] = lambda _: True,
) -> tuple[Watch, ManualClock]:
    clock = ManualClock()
    port = cast("Any", store)
    watch = Watch(
        port, port, clock, builds=lambda: [BUILD], definitions=lambda: store.definitions, keep=store.kept.append,
        first=first, paused=lambda: False, retention=60.0, served=lambda _: False, is_shared=is_shared,
        events=cast("Any", events),
    )  # fmt: skip
    watch.load(lambda: None, lambda _: None)
    return watch, clock


def changed(version: str, parked_us: int, *, was_parked: bool) -> Changed:
    return Changed(17, 17, "default", "order", version, Status.OPEN, 9, 1, 0, parked_us, 0, was_parked=was_parked)


def test_parked_runs_are_counted_once_and_then_by_their_changes() -> None:
    store = Store(v1=2)
    watch, clock = opened(store)
    for run in (
        changed("2", 5, was_parked=False),
        changed("1", 0, was_parked=True),
        changed("1", 7, was_parked=True),
        changed("1", 0, was_parked=False),
    ):
        watch.changed(run)
    assert watch.parked == {("default", "order", "1"): 1, ("default", "order", "2"): 1}
    watch.changed(changed("1", 0, was_parked=True))
    assert watch.parked == {("default", "order", "2"): 1}
    clock.advance(LOOK_INTERVAL)
    watch.tick()
    assert store.queries == 1
    assert store.operations == [], "no parked run of the version has a worker"


def test_parked_runs_go_on_in_batches() -> None:
    store = Store(v1=BATCH + 5)
    watch, clock = opened(store)
    store.answers = [BATCH, 5]
    clock.advance(LOOK_INTERVAL)
    watch.tick()
    assert [type(operation) for operation in store.operations] == [UnparkRuns] * 2


def attempts_of(store: Store) -> int:
    return sum(isinstance(operation, UnparkRuns) for operation in store.operations)


def test_as_many_parked_runs_are_not_tried_again_with_a_build_that_took_none_on() -> None:
    """Each attempt is a transaction, and an idle fleet sends its database few statements."""
    store = Store(v1=2)
    store.definitions = [Definition("order", "1")]
    watch, clock = opened(store, is_shared=True)
    attempts = []
    for parked in (2, 2, 2, 3, 3):
        store.parked = {BUILD[:3]: parked}
        clock.advance(LOOK_INTERVAL)
        watch.tick()
        attempts.append(attempts_of(store))
    assert attempts == [1, 1, 1, 2, 2]
    watch.build_connected(BUILD)
    assert attempts_of(store) == 3, "it has just connected"
    for _ in range(round(UNPARK_INTERVAL / LOOK_INTERVAL)):
        clock.advance(LOOK_INTERVAL)
        watch.tick()
    assert attempts_of(store) == 4, "other ones may be parked by now"
    store.parked, store.answers = {BUILD[:3]: 4}, [4, 1]
    for _ in range(2):
        clock.advance(LOOK_INTERVAL)
        watch.tick()
    assert attempts_of(store) == 6, "it has taken some on"


def test_one_query_finds_the_definitions_and_the_parked_runs_of_other_nodes() -> None:
    store = Store()
    watch, clock = opened(store, is_shared=True)
    before = store.queries
    store.definitions, store.parked = [Definition("order", "1")], {("default", "other", "1"): 3}
    for _ in range(3):
        clock.advance(LOOK_INTERVAL)
        watch.tick()
    assert store.queries - before == 3
    assert store.kept == [[Definition("order", "1")]] * 3
    assert watch.parked == {("default", "other", "1"): 3}


def test_runs_of_a_shared_store_are_counted_less_often() -> None:
    for is_shared, seconds in ((False, LOOK_INTERVAL), (True, SHARED_COUNT_INTERVAL)):
        store = Store()
        watch, clock = opened(store, is_shared=is_shared)
        store.definitions = [Definition("order", "1")]
        for _ in range(round(60 / LOOK_INTERVAL)):
            clock.advance(LOOK_INTERVAL)
            watch.tick()
        assert store.counted == 60 / seconds


def test_parked_runs_go_on_with_a_build_as_soon_as_it_connects() -> None:
    store = Store(v1=1)
    watch, _ = opened(store)
    watch.build_connected(("default", "order", "2", "b1"))
    assert store.operations == []
    watch.build_connected(BUILD)
    (operation,) = store.operations
    assert isinstance(operation, UnparkRuns)
    assert (operation.definition, operation.build) == (BUILD[:3], BUILD[3])


def test_newly_parked_runs_go_on_with_another_connected_build_at_once() -> None:
    store = Store()
    watch, _ = opened(store)
    watch.changed(changed("2", 5, was_parked=False))
    watch.tick()
    assert store.operations == [], "no worker has version 2"
    watch.changed(changed("1", 5, was_parked=False))
    watch.changed(changed("1", 6, was_parked=False))
    watch.tick()
    (operation,) = store.operations
    assert isinstance(operation, UnparkRuns)
    assert (operation.definition, operation.build) == (BUILD[:3], BUILD[3]), (
        "the store leaves out runs that it has tried"
    )
    watch.tick()
    watch.changed(changed("1", 0, was_parked=True))
    watch.tick()
    assert len(store.operations) == 1


def test_runs_without_a_worker_of_their_version_are_stranded_after_a_minute() -> None:
    store = Store()
    watch, clock = opened(store)
    store.definitions = [Definition("order", version) for version in "1234"]
    for version, number in (("1", 7), ("2", 2), ("3", 3)):
        store.counts[decision_function("default", "order", version), State.PENDING, 1] = number
    store.counts |= {
        (decision_function("default", "order", "3"), State.PENDING, 2): 1,
        (decision_function("default", "order", "4"), State.LEASED, 1): 1,
        (b"order", State.LEASED, 1): 5,
        (b"order", State.PENDING, 1): 9,
    }
    with capture_logs() as lines:
        for _ in range(int(STRANDED_AFTER / LOOK_INTERVAL)):
            clock.advance(LOOK_INTERVAL)
            watch.tick()
            assert watch.stranded() == []
        del store.counts[decision_function("default", "order", "2"), State.PENDING, 1]
        clock.advance(LOOK_INTERVAL)
        watch.tick()
        assert [one[:4] for one in watch.stranded()] == [("default", "order", "3", 4)], "version 1 has a worker"
        assert watch.open == {("default", "order"): 5}
        for _ in range(int(WARNING_INTERVAL / LOOK_INTERVAL)):
            clock.advance(LOOK_INTERVAL)
            watch.tick()
    assert [(line["log_level"], line["runs"], line["seconds"]) for line in lines] == [
        ("warning", 4, 60),
        ("warning", 4, 120),
    ]


class Log:
    """The event log of a store that several nodes share: notes and ends of states."""

    def __init__(self) -> None:
        self.noted: list[tuple[bytes, Any]] = []
        self.ended: list[bytes] = []

    def note(self, key: bytes, event: NewEvent, pause_us: int) -> None:
        assert pause_us >= 1e6 * (NOTE_INTERVAL + SHARED_COUNT_INTERVAL + STRANDED_AFTER)
        self.noted.append((key, (event.type, event.namespace, event.function, event.fields)))

    def end(self, key: bytes) -> None:
        self.ended.append(key)


def test_the_first_node_in_line_notes_once_a_minute_that_runs_are_stranded() -> None:
    store = Store()
    store.definitions = [Definition("order", version) for version in "12"]
    log = Log()
    mine = [True, False]
    nodes = [
        opened(store, events=log, first=lambda _: mine[0]),
        opened(store, events=log, first=lambda _: mine[1]),
    ]
    function = decision_function("default", "order", "2")
    store.counts = {(decision_function("default", "order", "1"), State.PENDING, 1): 1, (function, State.PENDING, 1): 3}

    def wait(seconds: float) -> None:
        for _ in range(round(seconds / LOOK_INTERVAL)):
            for watch, clock in nodes:
                clock.advance(LOOK_INTERVAL)
                watch.tick()

    wait(STRANDED_AFTER)
    assert log.noted == []
    wait(LOOK_INTERVAL)
    note = (b"stranded runs of " + function, (RUN_STRANDED, "default", "order", StrandedFields(version="2", runs=3)))
    assert log.noted == [note]
    wait(NOTE_INTERVAL - LOOK_INTERVAL)
    assert log.noted == [note]
    wait(LOOK_INTERVAL)
    assert log.noted == [note] * 2
    mine.reverse()
    wait(LOOK_INTERVAL)
    assert log.noted == [note] * 3, "the next node takes over with the same key"
    store.counts.clear()
    wait(LOOK_INTERVAL)
    assert log.ended == [note[0]] * 2
    wait(NOTE_INTERVAL * 2)
    assert (len(log.noted), len(log.ended)) == (3, 2)


def test_old_runs_and_then_early_signals_are_deleted_until_none_are_left() -> None:
    store = Store()
    watch, clock = opened(store)
    store.answers = [BATCH, 3, 0, 1_000, 0]
    clock.advance(FORGET_DELAY)
    watch.tick()
    assert [type(operation) for operation in store.operations] == [ForgetRuns] * 3 + [SweepEarlySignals] * 2
    sweeps = [operation.after for operation in store.operations if isinstance(operation, SweepEarlySignals)]
    assert sweeps == [0, 1_000]
    watch.tick()
    assert len(store.operations) == 5
    clock.advance(FORGET_INTERVAL)
    watch.tick()
    assert len(store.operations) == 7
