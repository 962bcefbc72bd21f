from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from structlog.testing import capture_logs

from mainspring.callbacks import Callback, CallInProgress
from mainspring.clock import to_us
from mainspring.testing.passing_time import ManualClock
from mainspring.workflows.definitions import ABSENCE, LOOK_INTERVAL, REFUSAL, STARTUP_GRACE, Definitions
from mainspring.workflows.model import SEEN_INTERVAL, Definition, decision_function

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.workflows.decider_workers import Build
    from mainspring.workflows.store import SaveDefinitions

ONE, TWO = Definition("order", "1", first_seen_us=1, last_seen_us=5), Definition("order", "2", first_seen_us=2)


class Store:
    """Takes operations, and answers a query with stored definitions."""

    def __init__(self, *stored: Definition) -> None:
        self.stored = list(stored)
        self.operations: list[SaveDefinitions] = []
        self.has_older_node = False

    def put(self, operation: SaveDefinitions, done: Callable[[Sequence[Definition]], None], *_: Any) -> None:
        self.operations.append(operation)
        if not self.has_older_node:
            self.stored += operation.definitions
        done(self.stored)

    def committed(self, operation: SaveDefinitions) -> Callback[Sequence[Definition]]:
        return Callback(lambda done, _: self.put(operation, done))

    def ask(self, _: object, done: Callable[[Sequence[Definition]], None], __: object) -> None:
        done(self.stored)


def opened(store: Store) -> tuple[Definitions, ManualClock, list[bytes]]:
    clock = ManualClock()
    added: list[bytes] = []
    definitions = Definitions(cast("Any", store), cast("Any", store), clock, added.extend)
    definitions.load(lambda: None, lambda _: None)
    return definitions, clock, added


def build(definition: Definition) -> Build:
    return (definition.namespace, definition.name, definition.version, "digest")


def fail(error: object) -> None:
    raise AssertionError(error)


def test_a_new_definition_is_stored_at_once() -> None:
    store = Store()
    definitions, _, added = opened(store)
    done: list[None] = []
    CallInProgress(definitions.define([ONE]), done.append, fail)
    assert [operation.definitions for operation in store.operations] == [[ONE]]
    assert done == [None]
    assert added == [b"order"]
    assert definitions.is_workflow(b"order")


def test_a_known_definition_is_written_once_a_minute_while_a_worker_has_it() -> None:
    store = Store(ONE, TWO)
    definitions, clock, _ = opened(store)
    clock.advance(STARTUP_GRACE)
    for expected in (1, 1, 2):
        definitions.tick(lambda: [build(ONE), build(ONE), build(TWO)])
        assert len(store.operations) == expected
        clock.advance(SEEN_INTERVAL / 2)
    assert [(operation.definitions, operation.seen) for operation in store.operations] == [
        ([], {build(ONE)[:3], build(TWO)[:3]})
    ] * 2
    assert not store.operations[0].urgent
    clock.advance(SEEN_INTERVAL)
    definitions.tick(list)
    assert len(store.operations) == 2


def test_workers_that_reconnect_after_a_start_of_the_node_are_seen_together() -> None:
    store = Store(ONE, TWO)
    definitions, clock, _ = opened(store)
    done: list[None] = []
    CallInProgress(definitions.define([ONE]), done.append, fail)
    assert (store.operations, done) == ([], [None])
    clock.advance(STARTUP_GRACE)
    definitions.tick(list)
    CallInProgress(definitions.define([ONE]), done.append, fail)
    assert len(store.operations) == 1, "later, a version that was not seen for long is written at once"


def test_a_version_without_workers_is_gone_soon_if_another_one_has_workers() -> None:
    clock = ManualClock()
    now_us = to_us(clock.wall())
    old, new = (Definition("order", one, first_seen_us=int(one), last_seen_us=now_us) for one in ("1", "2"))
    other = Definition("report", "1", first_seen_us=1, last_seen_us=now_us)  # has no worker, and no other version
    store = Store(old, new, other)
    elsewhere: set[bytes] = set()
    definitions = Definitions(
        cast("Any", store), cast("Any", store), clock, lambda _: None, served_elsewhere=elsewhere.__contains__
    )
    definitions.load(lambda: None, lambda _: None)
    clock.advance(STARTUP_GRACE)

    def ticks(seconds: float, *connected: Definition) -> list[Any]:
        """Let time pass with connected versions. Return the versions that were written as gone."""
        before = len(store.operations)
        for _ in range(round(seconds / LOOK_INTERVAL)):
            definitions.tick(lambda: [build(one) for one in connected])
            clock.advance(LOOK_INTERVAL)
        return [key for operation in store.operations[before:] for key in operation.gone]

    assert ticks(2, old, new) == []
    assert ticks(ABSENCE - 1, old) == []  # a reconnection takes a moment
    assert ticks(2, old, new) == []
    assert ticks(ABSENCE, old) == []
    assert set(ticks(2, old)) == {("default", "order", "2")}
    assert ticks(ABSENCE * 2) == []  # without any workers, the last version stays
    elsewhere.add(decision_function("default", "order", "2"))
    assert ticks(ABSENCE * 2, old) == []  # another node has workers of it


def test_a_definition_that_was_seen_at_a_time_that_has_not_come_is_stored_again() -> None:
    clock = ManualClock()
    ahead = Definition("order", "1", first_seen_us=1, last_seen_us=round((clock.wall() + 86_400) * 1_000_000))
    store = Store(ahead)
    definitions, clock, _ = opened(store)
    clock.advance(STARTUP_GRACE)
    definitions.tick(list)
    CallInProgress(definitions.define([ahead]), lambda _: None, fail)
    assert [operation.definitions for operation in store.operations] == [[ahead]]


def test_a_definition_waits_for_the_end_of_older_nodes() -> None:
    store = Store()
    store.has_older_node = True
    definitions, clock, _ = opened(store)
    done: list[None] = []
    failed: list[Exception] = []
    with capture_logs() as lines:
        for _ in range(3):
            CallInProgress(definitions.define([ONE]), done.append, failed.append)
            clock.advance(0.4 * REFUSAL)
        assert (len(failed), len(store.operations)) == (3, 1), "all workers together try again once in this time"
        clock.advance(REFUSAL)
        CallInProgress(definitions.define([ONE]), done.append, failed.append)
        assert (len(failed), len(store.operations)) == (4, 2)
    assert [line["event"] for line in lines] == [
        "workflows wait for the end of nodes of an earlier version, which share the store"
    ]
    assert not done
    store.has_older_node = False
    clock.advance(REFUSAL)
    CallInProgress(definitions.define([ONE]), done.append, fail)
    assert done == [None]
    assert definitions.is_workflow(ONE.function)
