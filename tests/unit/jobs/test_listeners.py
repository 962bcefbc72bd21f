from __future__ import annotations

from mainspring.ids import Handles
from mainspring.jobs.table import Listeners

from .a_node import Client


def test_a_listener_is_notified_once_however_often_it_waits() -> None:
    listeners, client = Listeners(Handles({})), Client()
    listeners.add(1, client)
    listeners.add(1, client)
    assert listeners.pop(1) == [client]
    assert listeners.pop(1) == []
    assert len(listeners) == 0


def test_a_listener_that_waits_repeatedly_is_notified_repeatedly() -> None:
    listeners, client = Listeners(Handles({})), Client()
    listeners.add(1, client)
    listeners.add(1, client, repeat=True)
    assert listeners.of(1) == [client, client]
    assert listeners.pop(1) == [client, client]
    assert not listeners.listens(1, client)


def test_who_leaves_is_forgotten_and_names_the_jobs_that_nobody_waits_for() -> None:
    listeners, one, other = Listeners(Handles({})), Client(), Client()
    listeners.add(1, one)
    listeners.add(1, one, repeat=True)
    listeners.add(2, one)
    listeners.add(2, other)
    assert listeners.leave(one, 10) == [1]
    assert listeners.of(2) == [other]
    assert listeners.leave(one, 10) == []
    assert listeners.leave(other, 10) == [2]
    assert len(listeners) == 0


def test_one_who_no_longer_waits_leaves_the_others() -> None:
    listeners, one, other = Listeners(Handles({})), Client(), Client()
    for client in (one, other):
        listeners.add(1, client)
    listeners.remove(1, one)
    listeners.remove(1, one)
    assert listeners.of(1) == [other]
    assert not listeners.listens(1, one)
    listeners.remove(1, other)
    assert len(listeners) == 0
    assert listeners.leave(other, 10) == []


def test_who_has_left_waits_for_nothing() -> None:
    listeners, client = Listeners(Handles({})), Client()
    client.gone = True
    listeners.add(1, client)
    assert len(listeners) == 0


def test_whether_any_of_some_waits() -> None:
    listeners, one, other = Listeners(Handles({})), Client(), Client()
    assert not listeners.waits(one, other)
    listeners.add(1, other)
    assert listeners.waits(one, other)


def test_who_leaves_can_leave_some_of_his_jobs_at_a_time() -> None:
    listeners, one = Listeners(Handles({})), Client()
    for job_id in range(5):
        listeners.add(job_id, one)
    left: list[int] = []
    while listeners.waits(one):
        some = listeners.leave(one, 2)
        assert 0 < len(some) <= 2
        left += some
    assert sorted(left) == list(range(5))
    assert not len(listeners)
