from __future__ import annotations

from mainspring.events.hub import Hub


def test_subscribers_get_every_event_until_they_unsubscribe() -> None:
    hub = Hub()
    one: list[object] = []
    two: list[object] = []
    assert not hub.active
    hub.publish("dropped")
    hub.subscribe(one.append)
    hub.publish(1)
    hub.subscribe(two.append)
    hub.publish(2)
    hub.unsubscribe(one.append)
    assert hub.active
    hub.publish(3)
    hub.unsubscribe(two.append)
    assert not hub.active
    assert (one, two) == ([1, 2], [2, 3])


def test_a_subscriber_may_unsubscribe_while_it_gets_an_event() -> None:
    hub = Hub()
    events: list[object] = []

    def once(event: object) -> None:
        events.append(event)
        hub.unsubscribe(once)

    hub.subscribe(once)
    hub.subscribe(events.append)
    hub.publish(1)
    hub.publish(2)
    assert events == [1, 1, 2]


def test_a_function_that_never_subscribed_may_unsubscribe() -> None:
    hub = Hub()
    hub.unsubscribe(print)
    assert not hub.active
