from __future__ import annotations

from mainspring.events.hub import Hub


def test_watchers_hear_of_everything_from_their_coming_to_their_leaving() -> None:
    hub = Hub()
    one: list[object] = []
    two: list[object] = []
    assert not hub.active
    hub.publish("nobody hears")
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


def test_a_watcher_may_leave_while_it_is_told() -> None:
    hub = Hub()
    heard: list[object] = []

    def once(event: object) -> None:
        heard.append(event)
        hub.unsubscribe(once)

    hub.subscribe(once)
    hub.subscribe(heard.append)
    hub.publish(1)
    hub.publish(2)
    assert heard == [1, 1, 2]


def test_who_never_watched_may_leave() -> None:
    hub = Hub()
    hub.unsubscribe(print)
    assert not hub.active
