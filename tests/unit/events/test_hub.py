from __future__ import annotations

from typing import NamedTuple

from mainspring.events import Hub


class Job(NamedTuple):
    id: int


ONE, TWO, THREE = Job(1), Job(2), Job(3)


def test_subscribers_get_every_change_until_they_unsubscribe() -> None:
    hub = Hub()
    one: list[Job] = []
    two: list[Job] = []
    assert not hub.active
    hub.publish(ONE)
    hub.subscribe(one.append)
    hub.publish(ONE)
    hub.subscribe(two.append)
    hub.publish(TWO)
    hub.unsubscribe(one.append)
    assert hub.active
    hub.publish(THREE)
    hub.unsubscribe(two.append)
    assert not hub.active
    assert (one, two) == ([ONE, TWO], [TWO, THREE])


def test_subscribers_of_one_job_cost_other_jobs_nothing() -> None:
    hub = Hub()
    first: list[Job] = []
    second: list[Job] = []
    hub.subscribe(first.append, of=1)
    hub.subscribe(second.append, of=1)
    assert hub.active
    assert (1 in hub.wanted, 2 in hub.wanted) == (True, False)
    hub.publish(ONE)
    hub.publish(TWO)
    hub.unsubscribe(first.append, of=1)
    hub.publish(ONE)
    assert (first, second) == ([ONE], [ONE, ONE])
    hub.subscribe(first.append)
    assert (1 in hub.wanted, 2 in hub.wanted) == (True, True)
    hub.unsubscribe(first.append)
    hub.unsubscribe(second.append, of=1)
    assert not hub.active
    assert 1 not in hub.wanted


def test_a_subscriber_may_unsubscribe_while_it_gets_an_event() -> None:
    for of in (None, 1):
        hub = Hub()
        events: list[object] = []

        def once(event: object, hub: Hub = hub, events: list[object] = events, of: int | None = of) -> None:
            events.append(event)
            hub.unsubscribe(once, of)

        hub.subscribe(once, of)
        hub.subscribe(events.append, of)
        hub.publish(ONE)
        hub.publish(ONE)
        assert events == [ONE, ONE, ONE]


def test_a_function_that_never_subscribed_may_unsubscribe() -> None:
    hub = Hub()
    hub.unsubscribe(print)
    hub.unsubscribe(print, of=1)
    assert not hub.active
