"""The master's index of pending tasks, and the assignment of its tasks to requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from mainspring.engines.zookeeper import master_dispatching, paths, records
from mainspring.engines.zookeeper.master_dispatching import assign
from mainspring.engines.zookeeper.master_index import Index, OpenRequest, Task, Worker, task_of_job, task_of_node
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


def test_a_task_read_from_the_tree_equals_the_created_one() -> None:
    one = task(7, unique=b"u")
    assert one.data is not None
    assert task_of_node(one.name, Node(one.data, 3, 0, 0, 0)) == one._replace(version=3)


def test_names_are_read_for_requested_functions() -> None:
    index = Index()
    names = {name: paths.task_name(name, b"u", 1) for name in (b"f", b"g", b"h" * 300)}
    for name in names.values():
        index.update_bucket(paths.bucket(name), [name])
    assert index.unread([], 10) == [names[b"h" * 300]], "its name does not contain its function"
    assert index.unread([b"g"], 10) == [names[b"g"], names[b"h" * 300]]
    assert index.unread([b"f", b"g"], 1) == [names[b"f"]]
    index.read(names[b"f"], node(1))
    index.read(names[b"g"], None)
    assert index.unread([b"f", b"g"], 10) == [names[b"h" * 300]]
    assert index.waiting(b"f") == 1
    assert index.functions() == {b"f"}


def test_a_task_missing_from_the_list_of_its_bucket_is_removed() -> None:
    one, two = task(1, unique=b"a"), task(2, unique=b"b")
    index = index_of(one, two)
    index.update_bucket(paths.bucket(one.name), [])
    assert walked(index) == [two]
    assert len(index) == 1


def test_a_bucket_whose_list_has_skipped_a_reserved_task_is_listed_again() -> None:
    one, two = task(1, unique=b"a"), task(2, unique=b"b")
    index = index_of(one, two)
    for reserved in (one, two):
        index.reserve(reserved)
    index.update_bucket(paths.bucket(one.name), [one.name])
    assert index.pop_missed() == set()
    index.settle(two, back=False)
    assert index.pop_missed() == set(), "no list has contained it meanwhile"
    index.settle(one, back=False)
    assert index.pop_missed() == {paths.bucket(one.name)}
    assert index.pop_missed() == set()


def test_a_task_put_while_its_bucket_was_listed_stays() -> None:
    one = task(1, unique=b"a")
    index = index_of(one)
    revision = index.revision
    two = task(2, unique=next(b"%d" % n for n in range(999) if paths.bucket(f"f:{n}") == paths.bucket(one.name)))
    index.put(two)
    index.update_bucket(paths.bucket(one.name), [], revision)
    assert walked(index) == [two]


def test_a_reserved_task_is_not_added_by_a_list() -> None:
    one = task(1)
    index = index_of(one)
    index.reserve(one)
    index.update_bucket(paths.bucket(one.name), [one.name])
    index.read(one.name, node(1))
    assert index.unread([b"f"], 9) == []
    assert walked(index) == []
    index.settle(one, back=True)
    assert walked(index) == [one]


def test_the_index_is_bounded() -> None:
    tasks = [task(number) for number in range(30)]
    index = index_of(*tasks, max_names=20, max_tasks=10)
    assert len(index) == index.waiting(b"f") == 10
    assert index.more == {paths.bucket(one.name) for one in tasks[10:]}
    for bucket in paths.BUCKETS:
        names = [one.name for one in tasks if paths.bucket(one.name) == bucket]
        if names:
            index.update_bucket(bucket, names)
    assert len(index) == 20
    assert index.unread([b"f"], 99) == [], "it is full"
    for one in tasks[:10]:
        index.reserve(one)
    assert len(index.unread([b"f"], 99)) == 10
    index.evict_unrequested([b"f"])
    assert index.has_room


def test_records_beyond_its_bytes_are_read_again() -> None:
    one, two = task(1), task(2)
    assert one.data is not None
    index = index_of(one, two, max_bytes=len(one.data) + 1)
    assert [one.data is None for one in walked(index)] == [False, True]


def test_tasks_of_functions_without_requests_are_evicted() -> None:
    index = index_of(task(1), task(2, b"g"))
    index.evict_unrequested([b"g"])
    assert walked(index) == []
    assert [one.function for one in walked(index, b"g")] == [b"g"]
    assert index.more == {paths.bucket(task(1).name)}


slots = st.none() | st.frozensets(st.integers(0, 1023), min_size=300)


@given(st.lists(st.integers(1, 500), unique=True), st.lists(slots, max_size=3), st.data())
def test_interleaved_walks_yield_each_task_once_and_in_order(
    numbers: list[int], requested: list[frozenset[int] | None], data: st.DataObject
) -> None:
    tasks = {number: task(number) for number in numbers}
    index = index_of(*tasks.values())
    walks = [(index.walk(b"f", 1, some), some) for some in requested]
    left = dict(sorted(tasks.items()))
    while walks:
        walk, some = data.draw(st.sampled_from(walks))
        found = next(walk, None)
        fitting = [one for one in left.values() if some is None or one.slot in some]
        if found is None:
            walks.remove((walk, some))
            assert not fitting
            continue
        assert found == fitting[0]
        index.reserve(found)
        del left[found.id - 10**12]
    assert walked(index) == list(left.values())


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 40))))
def test_the_index_has_the_tasks_put_and_not_settled(steps: list[tuple[int, int]]) -> None:
    index = Index()
    expected: dict[int, Task] = {}
    for is_put, number in steps:
        one = task(number)
        if is_put:
            index.put(one)
            expected[number] = one
        elif number in expected:
            index.reserve(expected.pop(number))
            index.settle(one, back=False)
    assert walked(index) == [expected[number] for number in sorted(expected)]
    assert len(index) == index.waiting(b"f") == len(expected)


# ---- assignment ----


def assigned_to(index: Index, *requests: OpenRequest, **more: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for request, one in assign(index, requests, **more):
        found.setdefault(request.worker.who.removesuffix("-1"), []).append(one.id - 10**12)
    return found


def worker(node: str, capacity: int = 100) -> Worker:
    return Worker(f"{node}-1", capacity)


def test_tasks_are_assigned_by_priority_then_age() -> None:
    index = index_of(task(1, priority=2), task(2, priority=1), task(3, priority=0), task(4, priority=1))
    assert assigned_to(index, OpenRequest(worker("a"), b"f", 3)) == {"a": [3, 2, 4]}
    assert assigned_to(index, OpenRequest(worker("a"), b"f", 3)) == {"a": [1]}


def test_several_nodes_get_the_same_number() -> None:
    index = index_of(*(task(number) for number in range(1, 13)))
    requests = [
        OpenRequest(worker("a"), b"f", 100),
        OpenRequest(worker("b"), b"f", 2),
        OpenRequest(worker("c"), b"f", 100),
    ]
    found = assigned_to(index, *requests)
    assert {who: len(some) for who, some in found.items()} == {"a": 5, "b": 2, "c": 5}
    assert [request.left for request in requests] == [95, 0, 95]


def test_a_draining_or_full_worker_gets_nothing() -> None:
    index = index_of(*(task(number) for number in range(1, 10)))
    draining, full, nearly = worker("a"), worker("b", 0), worker("c", 2)
    draining.leaving = True
    found = assigned_to(index, *(OpenRequest(one, b"f", 9) for one in (draining, full, nearly)))
    assert found == {"c": [1, 2]}


def test_a_round_is_limited() -> None:
    index = index_of(*(task(number) for number in range(1, 10)))
    assert assigned_to(index, OpenRequest(worker("a"), b"f", 9), most=4) == {"a": [1, 2, 3, 4]}


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(0, 2)), unique_by=lambda one: one[0]),
    st.lists(st.tuples(st.integers(0, 30), slots, st.integers(0, 250), st.integers(0, 40)), max_size=4),
)
def test_workers_get_only_matching_tasks_and_no_matching_task_stays(
    tasks: Sequence[tuple[int, int]], limits: Sequence[tuple[int, frozenset[int] | None, int, int]]
) -> None:
    index = index_of(*(task(number, priority=priority) for number, priority in tasks))
    requests = [
        OpenRequest(worker(f"n{at}", capacity), b"f", limit, some, overdue_us)
        for at, (limit, some, overdue_us, capacity) in enumerate(limits)
    ]
    assignments = assign(index, requests)
    for request, one in assignments:
        assert request.slots is None or one.slot in request.slots or one.since_us < request.overdue_us
    for request, (limit, _, _, capacity) in zip(requests, limits, strict=True):
        assert sum(to is request for to, _ in assignments) == limit - request.left == capacity - request.worker.capacity
        assert request.left >= 0
        assert request.worker.capacity >= 0
    left = [one for priority in range(3) for one in walked(index, priority=priority)]
    assert len(left) + len(assignments) == len(tasks)
    assert not any(request.is_open and request.fits(one) for request in requests for one in left)


def test_a_task_behind_many_of_other_slots_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_dispatching, "SCAN_LIMIT", 10)
    index = index_of(*(task(number) for number in range(1, 300)))
    last = walked(index)[-1]
    before = sum(one.slot == last.slot for one in walked(index)) - 1
    request = OpenRequest(worker("a"), b"f", before + 1, frozenset({last.slot}))
    assert assigned_to(index, request)["a"][-1] == 299


def test_fifty_thousand_tasks_do_not_slow_an_assignment() -> None:
    index = index_of(*(task(number, unique=b"%d" % number) for number in range(1, 50_000)))
    others = frozenset(range(1, 1024))
    began = time.process_time()
    for _ in range(20):
        assert assigned_to(index, OpenRequest(worker("a"), b"f", 0, others), OpenRequest(worker("b"), b"g", 9)) == {}
        assert len(assigned_to(index, OpenRequest(worker("a"), b"f", 20))["a"]) == 20
    assert time.process_time() - began < 2
