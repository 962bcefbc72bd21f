"""The master's index of pending tasks, and which request gets which of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.master import assigning
from mainspring.engines.zookeeper.master.assigning import assign
from mainspring.engines.zookeeper.master.index import Index, Task, task_of_job, task_of_node
from mainspring.engines.zookeeper.master.workers import OpenWant, Worker
from mainspring.engines.zookeeper.tree import Node
from mainspring.jobs.model import Job, Priority

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


def job(number: int, function: bytes = b"f", priority: int = Priority.NORMAL, **values: Any) -> Job:
    return Job(10**12 + number, function, b"p", priority=int(priority), created_us=number, **values)


def task(number: int, function: bytes = b"f", priority: int = Priority.NORMAL, **values: Any) -> Task:
    one = job(number, function, priority, **values)
    return task_of_job(paths.task_name(function, one.unique, one.id), one, records.encode_job(one, f"H:n:{one.id}"))


def node(number: int, function: bytes = b"f", version: int = 0) -> Node:
    one = job(number, function)
    return Node(records.encode_job(one, f"H:n:{one.id}"), version, 0, 0, 0)


def index_of(*tasks: Task, **limits: int) -> Index:
    index = Index(**limits)
    for one in tasks:
        index.put(one)
    return index


def walked(index: Index, function: bytes = b"f", priority: int = 1, slots: frozenset[int] | None = None) -> list[Task]:
    return list(index.walk(function, priority, slots))


def test_what_was_read_is_what_was_created() -> None:
    one = task(7, unique=b"u")
    assert one.data is not None
    assert task_of_node(one.name, Node(one.data, 3, 0, 0, 0)) == one._replace(version=3)


def test_names_are_read_for_the_functions_that_are_wanted() -> None:
    index = Index()
    names = {name: paths.task_name(name, b"u", 1) for name in (b"f", b"g", b"h" * 300)}
    for name in names.values():
        index.listed(paths.bucket(name), [name])
    assert index.unread([], 10) == [names[b"h" * 300]], "its name does not tell its function"
    assert index.unread([b"g"], 10) == [names[b"g"], names[b"h" * 300]]
    assert index.unread([b"f", b"g"], 1) == [names[b"f"]]
    index.read(names[b"f"], node(1))
    index.read(names[b"g"], None)
    assert index.unread([b"f", b"g"], 10) == [names[b"h" * 300]]
    assert index.waiting(b"f") == 1
    assert index.functions() == {b"f"}


def test_what_has_gone_from_its_bucket_is_forgotten() -> None:
    one, two = task(1, unique=b"a"), task(2, unique=b"b")
    index = index_of(one, two)
    index.listed(paths.bucket(one.name), [])
    assert walked(index) == [two]
    assert len(index) == 1


def test_what_came_while_its_bucket_was_listed_stays() -> None:
    one = task(1, unique=b"a")
    index = index_of(one)
    asked = index.moment
    two = task(2, unique=next(b"%d" % n for n in range(999) if paths.bucket(f"f:{n}") == paths.bucket(one.name)))
    index.put(two)
    index.listed(paths.bucket(one.name), [], asked)
    assert walked(index) == [two]


def test_what_is_being_assigned_is_not_taken_in_again() -> None:
    one = task(1)
    index = index_of(one)
    index.take(one)
    index.listed(paths.bucket(one.name), [one.name])
    index.read(one.name, node(1))
    assert index.unread([b"f"], 9) == []
    assert walked(index) == []
    index.settle(one, back=True)
    assert walked(index) == [one]


def test_it_is_bounded() -> None:
    tasks = [task(number) for number in range(30)]
    index = index_of(*tasks, most_names=20, most_tasks=10)
    assert len(index) == index.waiting(b"f") == 10
    assert index.more == {paths.bucket(one.name) for one in tasks[10:]}
    for bucket in paths.BUCKETS:
        names = [one.name for one in tasks if paths.bucket(one.name) == bucket]
        if names:
            index.listed(bucket, names)
    assert len(index) == 20
    assert index.unread([b"f"], 99) == [], "it is full"
    for one in tasks[:10]:
        index.take(one)
    assert len(index.unread([b"f"], 99)) == 10
    index.forget_unwanted([b"f"])
    assert index.has_room


def test_records_beyond_its_bytes_are_read_again() -> None:
    one, two = task(1), task(2)
    assert one.data is not None
    index = index_of(one, two, most_bytes=len(one.data) + 1)
    assert [kept.data is None for kept in walked(index)] == [False, True]


def test_what_nobody_wants_makes_room() -> None:
    index = index_of(task(1), task(2, b"g"))
    index.forget_unwanted([b"g"])
    assert walked(index) == []
    assert [one.function for one in walked(index, b"g")] == [b"g"]
    assert index.more == {paths.bucket(task(1).name)}


slots = st.none() | st.frozensets(st.integers(0, 1023), min_size=300)


@given(st.lists(st.integers(1, 500), unique=True), st.lists(slots, max_size=3), st.data())
def test_walks_side_by_side_meet_each_task_once_and_in_order(
    numbers: list[int], wanted: list[frozenset[int] | None], data: st.DataObject
) -> None:
    tasks = {number: task(number) for number in numbers}
    index = index_of(*tasks.values())
    walks = [(index.walk(b"f", 1, some), some) for some in wanted]
    left = dict(sorted(tasks.items()))
    while walks:
        walk, some = data.draw(st.sampled_from(walks))
        met = next(walk, None)
        fitting = [one for one in left.values() if some is None or one.slot in some]
        if met is None:
            walks.remove((walk, some))
            assert not fitting
            continue
        assert met == fitting[0]
        index.take(met)
        del left[met.id - 10**12]
    assert walked(index) == list(left.values())


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 40))))
def test_it_knows_what_came_and_has_not_gone(steps: list[tuple[int, int]]) -> None:
    index = Index()
    there: dict[int, Task] = {}
    for comes, number in steps:
        one = task(number)
        if comes:
            index.put(one)
            there[number] = one
        elif number in there:
            index.take(there.pop(number))
            index.settle(one, back=False)
    assert walked(index) == [there[number] for number in sorted(there)]
    assert len(index) == index.waiting(b"f") == len(there)


# ---- who gets which ----


def given_to(index: Index, *wants: OpenWant, **more: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for want, one in assign(index, wants, **more):
        found.setdefault(want.worker.who.removesuffix("-1"), []).append(one.id - 10**12)
    return found


def worker(node: str, room: int = 100) -> Worker:
    return Worker(f"{node}-1", room)


def test_by_priority_then_age() -> None:
    index = index_of(task(1, priority=2), task(2, priority=1), task(3, priority=0), task(4, priority=1))
    assert given_to(index, OpenWant(worker("a"), b"f", 3)) == {"a": [3, 2, 4]}
    assert given_to(index, OpenWant(worker("a"), b"f", 3)) == {"a": [1]}


def test_several_nodes_get_the_same_number() -> None:
    index = index_of(*(task(number) for number in range(1, 13)))
    wants = [OpenWant(worker("a"), b"f", 100), OpenWant(worker("b"), b"f", 2), OpenWant(worker("c"), b"f", 100)]
    found = given_to(index, *wants)
    assert {who: len(some) for who, some in found.items()} == {"a": 5, "b": 2, "c": 5}
    assert [want.left for want in wants] == [95, 0, 95]


def test_who_drains_or_is_full_gets_nothing() -> None:
    index = index_of(*(task(number) for number in range(1, 10)))
    draining, full, nearly = worker("a"), worker("b", 0), worker("c", 2)
    draining.draining = True
    found = given_to(index, *(OpenWant(one, b"f", 9) for one in (draining, full, nearly)))
    assert found == {"c": [1, 2]}


def test_so_many_at_once() -> None:
    index = index_of(*(task(number) for number in range(1, 10)))
    assert given_to(index, OpenWant(worker("a"), b"f", 9), most=4) == {"a": [1, 2, 3, 4]}


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(0, 2)), unique_by=lambda one: one[0]),
    st.lists(st.tuples(st.integers(0, 30), slots, st.integers(0, 250), st.integers(0, 40)), max_size=4),
)
def test_nobody_gets_what_it_may_not_and_nothing_stays_that_somebody_may_have(
    tasks: Sequence[tuple[int, int]], requests: Sequence[tuple[int, frozenset[int] | None, int, int]]
) -> None:
    index = index_of(*(task(number, priority=priority) for number, priority in tasks))
    wants = [
        OpenWant(worker(f"n{at}", room), b"f", limit, some, overdue_us)
        for at, (limit, some, overdue_us, room) in enumerate(requests)
    ]
    given = assign(index, wants)
    for want, one in given:
        assert want.slots is None or one.slot in want.slots or one.since_us < want.overdue_us
    for want, (limit, _, _, room) in zip(wants, requests, strict=True):
        assert sum(to is want for to, _ in given) == limit - want.left == room - want.worker.room
        assert want.left >= 0
        assert want.worker.room >= 0
    left = [one for priority in range(3) for one in walked(index, priority=priority)]
    assert len(left) + len(given) == len(tasks)
    assert not any(want.is_open and want.fits(one) for want in wants for one in left)


def test_behind_very_many_of_others_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assigning, "LOOK", 10)
    index = index_of(*(task(number) for number in range(1, 300)))
    last = walked(index)[-1]
    before = sum(one.slot == last.slot for one in walked(index)) - 1
    want = OpenWant(worker("a"), b"f", before + 1, frozenset({last.slot}))
    assert given_to(index, want)["a"][-1] == 299


def test_fifty_thousand_tasks_are_no_burden() -> None:
    index = index_of(*(task(number, unique=b"%d" % number) for number in range(1, 50_000)))
    others = frozenset(range(1, 1024))
    began = time.process_time()
    for _ in range(20):
        assert given_to(index, OpenWant(worker("a"), b"f", 0, others), OpenWant(worker("b"), b"g", 9)) == {}
        assert len(given_to(index, OpenWant(worker("a"), b"f", 20))["a"]) == 20
    assert time.process_time() - began < 2
