"""The deliveries of a node in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs
from tests.unit.jobs.a_node import Node, unexpected

from mainspring.callbacks import CallInProgress
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.memory.subscriptions import MemorySubscriptionSlice
from mainspring.event_log.interests import Interest
from mainspring.event_log.service import EventLog
from mainspring.event_log.types import types_of
from mainspring.jobs.model import MOST_DEPTH, Job, Options
from mainspring.namespaces import key
from mainspring.subscriptions import service
from mainspring.subscriptions.model import Subscription, Target
from mainspring.subscriptions.service import LOOK_INTERVAL, RELOAD_INTERVAL, Deliverer
from mainspring.subscriptions.store import Deliver

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mainspring.event_log.store import Event
    from mainspring.jobs.held import Worker
    from mainspring.subscriptions.model import Subscribed

ID = "listener:default/tell"


def listener(*patterns: str, name: str = "tell", paused: str = "", **filters: Any) -> Subscription:
    return Subscription(
        target=Target.LISTENER,
        namespace="default",
        name=name,
        interest=Interest(types_of(patterns or ["job.failed"]), **filters),
        function=name,
        paused=paused,
    )


def payload_of(event: Event, _: Subscription) -> bytes:
    return f"{event.number} {event.type} {event.function}".encode()


class EventNode(Node):
    """A node that delivers events. Several of one store have the same engine."""

    def __init__(
        self,
        earlier: EventNode | None = None,
        *,
        most: int = 1000,
        first: bool = True,
        payload_of: Callable[[Event, Subscription], bytes] = payload_of,
    ) -> None:
        engine = earlier.engine if earlier is not None else MemoryEngine([MemorySubscriptionSlice()])
        super().__init__(earlier, engine=engine)
        assert isinstance(engine, MemoryEngine)
        stored = self.service.lifecycle.stored

        def note(jobs: Sequence[Job]) -> None:
            self.history.live.update(job.id for job in jobs)  # it knows no jobs of slices
            stored(jobs)

        self.service.lifecycle.stored = note  # type: ignore[method-assign]
        self.events = EventLog(
            self.life.commits,
            self.life.reads,
            self.clock,
            engine.interests,
            lambda function: function(),
            first=None,
            retention=3600.0,
            most=most,
        )
        self.deliverer = Deliverer(
            self.life.commits,
            self.life.reads,
            self.clock,
            self.events,
            payload_of,
            first=lambda _: first,
            paused=lambda: False,
        )
        self.events.subscribe_own(self.deliverer.look)

    def does(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run an act to its end, and return its outcome."""
        answers: list[Any] = []
        CallInProgress(work, answers.append, unexpected)
        self.commit()
        return answers[0]

    def subscribe(self, *patterns: str, **values: Any) -> None:
        self.does(self.deliverer.save(listener(*patterns, **values)))

    def kept(self) -> Subscribed:
        """Return the first subscription as it is in the store."""
        found: Subscribed = next(one for one in self.does(self.deliverer.all()) if one.subscription.id == ID)
        return found

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with the ticks of a node."""
        for _ in range(round(seconds / 0.25)):
            self.clock.advance(0.25)
            self.events.tick()
            self.deliverer.tick()
            self.commit()

    def fails(self, function: str = "f", **fields: Any) -> Job:
        """Run a job that fails for good."""
        job = self.background(function=function, **fields)
        worker = self.worker(function)
        self.settling.failed(self.given(worker), b'{"type":"E","message":"m"}', final=True)
        self.commit()
        self.service.workers.gone(worker)
        return job

    def run(self, worker: Worker) -> bytes | None:
        """Run the next job of a worker; return its payload, None if there is none."""
        held = self.grab(worker)
        self.commit()
        if held is None and (given := worker.running):
            held = next(iter(given.values()))
        if held is None:
            return None
        payload = held.job.payload
        self.settling.succeeded(held, b"")
        self.commit()
        return payload

    def delivered(self, name: str = "tell") -> list[bytes]:
        """Run all deliveries."""
        worker = self.worker(name)
        found = []
        while (payload := self.run(worker)) is not None:
            found.append(payload)
        self.service.workers.gone(worker)
        return found


@pytest.fixture
def node() -> EventNode:
    return EventNode()


def test_an_event_is_delivered_at_once_where_it_was_recorded(node: EventNode) -> None:
    node.subscribe()
    node.fails()
    assert node.delivered() == [b"1 job.failed f"]
    assert node.delivered() == []


def test_only_events_of_the_filter_are_delivered(node: EventNode) -> None:
    node.subscribe("job.failed", functions=("pay*",))
    node.subscribe("job.*", name="all")
    node.fails("f")
    node.fails("pay_rent")
    assert node.delivered() == [b"2 job.failed pay_rent"]
    assert node.delivered("all")[:2] == [b"1 job.failed f", b"2 job.failed pay_rent"]


def test_a_new_subscription_gets_no_earlier_events(node: EventNode) -> None:
    node.subscribe()
    node.fails()
    node.subscribe(name="late")
    node.fails()
    assert node.delivered("late") == [b"2 job.failed f"]


def test_a_paused_subscription_gets_its_events_afterwards(node: EventNode) -> None:
    node.subscribe()
    node.subscribe(paused="not now")
    node.fails()
    node.pass_time(3 * LOOK_INTERVAL)
    assert node.delivered() == []
    node.subscribe()
    assert node.delivered() == [b"1 job.failed f"]


def test_a_removed_subscription_gets_nothing(node: EventNode) -> None:
    node.subscribe()
    assert node.does(node.deliverer.remove(ID)) is True
    assert node.does(node.deliverer.remove(ID)) is False
    node.fails()
    assert node.delivered() == []


def test_another_node_delivers_what_a_node_has_recorded_before_its_end(node: EventNode) -> None:
    node.subscribe()
    other = EventNode(node)
    assert isinstance(node.engine, MemoryEngine)
    node.engine.interests.subscribe(lambda _: None, lambda: None)  # it ends between the commit and the delivery
    node.fails()
    assert other.delivered() == []
    other.pass_time(RELOAD_INTERVAL + 2 * LOOK_INTERVAL)
    assert other.delivered() == [b"1 job.failed f"]


def test_two_nodes_that_deliver_the_same_event_do_so_once(node: EventNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.subscribe()
    other = EventNode(node)
    other.pass_time(2 * LOOK_INTERVAL)
    held: list[Any] = []
    put = node.life.commits.put

    def hold(operation: Any, *more: Any) -> None:
        if isinstance(operation, Deliver):
            held.append((operation, *more))
        else:
            put(operation, *more)

    monkeypatch.setattr(node.life.commits, "put", hold)
    node.fails()
    node.deliverer.look()
    node.commit()
    other.pass_time(2 * LOOK_INTERVAL)
    assert len(held) == 1
    put(*held[0])
    node.commit()
    assert other.delivered() == [b"1 job.failed f"]
    monkeypatch.undo()
    node.fails()
    node.deliverer.look()
    assert [*node.delivered(), *other.delivered()] == [b"2 job.failed f"]
    stored = node.deliverer.find(ID)
    assert stored is not None
    assert stored.number == 2, "it goes on from what is stored"


def test_events_that_were_deleted_before_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    node = EventNode(most=2)
    node.subscribe()
    node.subscribe(paused="not now")
    for _ in range(5):
        node.fails()
    node.pass_time(61)
    with capture_logs() as logs:
        node.subscribe()
    assert node.delivered() == [b"4 job.failed f", b"5 job.failed f"]
    assert (node.kept().subscription.missed, node.kept().number) == (3, 5)
    assert [line["up_to"] for line in logs if line["event"].startswith("a subscription may have missed events")] == [3]


def test_deleted_events_are_reported_without_a_later_event() -> None:
    node = EventNode(most=2)
    node.subscribe()
    node.subscribe(paused="not now")
    for _ in range(5):
        node.fails()
    node.pass_time(61)
    swept = node.does(node.events.ends())
    node.events._most = 0  # noqa: SLF001 - as another setting
    node.pass_time(61)
    assert swept.swept == 3
    node.subscribe()
    assert node.delivered() == []
    assert (node.kept().subscription.missed, node.kept().number) == (5, 5)


def test_events_about_a_subscriptions_own_function_are_left_out(node: EventNode) -> None:
    node.subscribe()
    node.fails("tell")
    node.fails("f")
    assert node.delivered() == [b"2 job.failed f"]


def test_events_of_a_function_of_this_name_elsewhere_are_not(node: EventNode) -> None:
    node.subscribe(namespace="")
    node.fails(key("other", b"tell").decode())
    assert node.delivered() == [b"1 job.failed tell"]


def test_a_circle_of_deliveries_ends(node: EventNode) -> None:
    node.subscribe("job.succeeded", functions=("there",), name="here")
    node.subscribe("job.succeeded", functions=("here",), name="there")
    node.background(function="here")
    delivered = 0
    with capture_logs() as logs:
        while found := [*node.delivered("here"), *node.delivered("there")]:
            delivered += len(found)
    assert delivered == 1 + MOST_DEPTH
    assert node.deliverer.too_deep == 1
    assert [line["function"] for line in logs if "in a circle" in line["event"]] == ["here"]


def test_a_job_that_a_delivery_has_led_to_counts_towards_the_depth(node: EventNode) -> None:
    node.subscribe("job.failed", functions=("f",))
    node.fails(options=Options(depth=MOST_DEPTH))
    node.fails(options=Options(depth=MOST_DEPTH - 1))
    assert node.delivered() == [b"2 job.failed f"]


def test_a_place_behind_unwanted_events_is_stored_from_time_to_time(
    node: EventNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "PORTION", 2)
    node.subscribe("job.failed", functions=("g",))
    node.subscribe("job.failed", name="other", functions=("f",))
    for _ in range(5):
        node.fails()
    stored = {one.subscription.name: one.number for one in node.does(node.deliverer.all())}
    assert stored == {"tell": 0, "other": 5}
    node.pass_time(service.ADVANCE_INTERVAL)
    node.fails()
    stored = {one.subscription.name: one.number for one in node.does(node.deliverer.all())}
    assert stored == {"tell": 6, "other": 6}


def test_a_store_that_refuses_deliveries_gets_them_again(node: EventNode) -> None:
    node.subscribe()
    node.life.store.loses = lambda group: any(isinstance(one, Deliver) for one in group)
    node.fails()
    node.life.store.loses = lambda group: False
    node.pass_time(2 * LOOK_INTERVAL)
    assert node.delivered() == [b"1 job.failed f"]
