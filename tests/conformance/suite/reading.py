"""Find, FindUnique, Count, FirstInLine and ListJobs."""

from __future__ import annotations

import pytest

from mainspring.features import Feature
from mainspring.jobs import store as ops
from mainspring.jobs.model import Priority, State
from mainspring.jobs.rules import Event
from mainspring.queries import FirstInLine, ReadArguments
from tests.conformance.suite.driver import NOW, Store, done
from tests.conformance.suite.operations import ANYTHING


class Reading:
    """Tests of operations that only read."""

    def test_a_job_is_shown_beside_the_groups(self, store: Store) -> None:
        ended, pending = store.leased(payload=b"load"), store.submitted(unique=b"u")
        store.end(ended, result=b"r")
        for job in (ended, pending):
            (found,) = store.group(ops.Find([job.id]))
            assert store.read(ops.ShowJob(job.id)) == found[job.id]
        for unknown in (1, 2**70):
            assert store.read(ops.ShowJob(unknown)) is None
        if Feature.NAMESPACES not in store.engine.lacks:
            assert store.read(ops.ShowJob(pending.id, "elsewhere")) is None

    def test_the_arguments_of_a_job_are_kept_until_it_succeeds(self, store: Store) -> None:
        later = store.submitted(function=b"g", payload=b"later", state=State.SCHEDULED, due_us=NOW)
        jobs = [store.leased(payload=b"load %d" % number) for number in range(4)]
        for job, event in zip(jobs, (Event.SUCCEED, Event.FAIL, Event.CANCEL), strict=False):
            store.end(job, event)
        arguments = [store.read(ReadArguments(job.id)) for job in (*jobs, later)]
        assert arguments == [None, b"load 1", b"load 2", b"load 3", b"later"]
        assert store.read(ReadArguments(store.submitted(payload=b"").id)) == b""
        assert store.read(ReadArguments(1)) is None
        assert store.read(ReadArguments(2**70)) is None

    def test_jobs_are_found_by_id(self, store: Store) -> None:
        jobs = [store.submitted() for _ in range(3)]
        ids = [jobs[2].id, 1, jobs[0].id, 10**19 - 1, 2**63, -1]
        (found,) = store.group(ops.Find(ids))
        assert {job_id: job.id for job_id, job in found.items()} == {job.id: job.id for job in (jobs[0], jobs[2])}

    def test_a_search_sees_its_group(self, store: Store) -> None:
        job, held = store.job(unique=b"u"), store.leased()
        find, unique, count, _, _ = store.group(
            ops.Find([job.id, held.id]),
            ops.FindUnique([(b"f", b"u")]),
            ops.Count(),
            ops.Submit([job]),
            ops.Settle([done(held)]),
        )
        assert {one.id: one.state for one in find.values()} == {job.id: State.PENDING, held.id: State.SUCCEEDED}
        assert unique == [(job.id, State.PENDING, 0)]
        assert count == {(b"f", State.PENDING, Priority.NORMAL): 1, (b"f", State.SUCCEEDED, Priority.NORMAL): 1}

    def test_results_are_read_as_far_as_there_is_room(self, store: Store) -> None:
        held = [store.leased() for _ in range(4)]
        sizes = (60_000, 150_000, 100_000, 0)
        store.settle(*[done(job, b"r" * size) for job, size in zip(held, sizes, strict=True)])
        ids = [job.id for job in held]

        def read(room: int, *wanted: int) -> list[tuple[int, int, int]]:
            (found,) = store.group(ops.Find(list(wanted), room))
            return [(ids.index(job_id), len(job.result), job.unread) for job_id, job in found.items()]

        nothing = [(number, 0, size) for number, size in enumerate(sizes)]
        assert read(0, *ids) == read(59_999, *ids) == nothing
        assert read(160_000, *ids) == [(0, 60_000, 0), (1, 0, 150_000), (2, 100_000, 0), (3, 0, 0)]
        assert read(150_000, ids[1]) == [(1, 150_000, 0)]
        assert read(150_000, ids[1], ids[0]) == [(1, 150_000, 0), (0, 0, 60_000)]
        assert read(10**9, *ids) == [(number, size, 0) for number, size in enumerate(sizes)]

    @pytest.mark.parametrize("size", [100, 100_000])
    def test_a_group_has_one_copy_of_each_result(self, store: Store, size: int) -> None:
        held = store.leased()
        store.settle(done(held, b"r" * size))
        outcomes = store.group(*[ops.Find([held.id], size) for _ in range(3)])
        results = [outcome[held.id].result for outcome in outcomes]
        assert results == [b"r" * size] * 3
        assert len(set(map(id, results))) == 1

    def test_live_jobs_are_found_by_unique(self, store: Store) -> None:
        first, second = store.submitted(unique=b"u"), store.submitted(function=b"g", unique=b"v")
        keys: list[tuple[bytes | ops.InNamespace, bytes]] = [
            (b"g", b"v"),
            (b"g", b"u"),
            (b"f", b"u"),
            (b"unknown", b"u"),
            (ANYTHING, b"v"),
            (ANYTHING, b"w"),
        ]
        found = store.find_unique(*keys)
        assert [one and one.id for one in found] == [second.id, None, first.id, None, second.id, None]

    def test_ended_jobs_are_not_found_by_unique(self, store: Store) -> None:
        store.end(store.leased(unique=b"u"), Event.FAIL)
        assert store.find_unique((b"f", b"u"), (ANYTHING, b"u")) == [None, None]

    def test_an_empty_unique_finds_nothing(self, store: Store) -> None:
        store.submitted()
        assert store.find_unique((b"f", b""), (ANYTHING, b"")) == [None, None]

    def test_held_jobs_are_counted_as_leased(self, store: Store) -> None:
        store.assign(store.leased(priority=Priority.HIGH))
        assert store.counts() == {(b"f", State.LEASED, Priority.HIGH): 1}

    def test_counts_hold_no_zeros(self, store: Store) -> None:
        assert store.counts() == {}
        store.end(store.leased())
        assert store.counts() == {(b"f", State.SUCCEEDED, Priority.NORMAL): 1}

    def test_the_live_jobs_of_some_functions_are_counted(self, store: Store) -> None:
        store.end(store.leased(function=b"g"))
        store.leased(function=b"g")
        store.submitted(function=b"g", priority=Priority.LOW)
        store.submitted(function=b"g", state=State.SCHEDULED, due_us=NOW + 10**9)
        store.submitted(function=b"h")
        named, in_the_same_group, _ = store.group(
            ops.Count([b"g", b"unknown"]),
            ops.Count([b"new"]),
            ops.Submit([store.job(function=b"new")]),
        )
        live = {(State.PENDING, Priority.LOW), (State.SCHEDULED, Priority.NORMAL), (State.LEASED, Priority.NORMAL)}
        assert named == {(b"g", *key): 1 for key in live}
        assert in_the_same_group == {(b"new", State.PENDING, Priority.NORMAL): 1}

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
    def test_live_jobs_are_counted_page_by_page(self, store: Store, limit: int) -> None:
        functions = [b"%d" % number for number in range(7)]
        for function in functions:
            store.submitted(function=function)
            store.end(store.leased(function=b"ended " + function))
        pages: list[ops.Counted] = []
        while not pages or pages[-1].next is not None:
            after = pages[-1].next if pages else b""
            assert after is not None
            page = store.read(ops.ShowCounts(after=after, limit=limit))
            pages.append(page)
            assert len(page.counts) <= limit
            assert len(pages) <= 15, "each page continues after the last one"
        met = [key for page in pages for key in page.counts]
        assert sorted(met) == [(function, State.PENDING, Priority.NORMAL) for function in functions]

    def test_the_dead_letters_of_some_functions_are_counted(self, store: Store) -> None:
        for priority in (Priority.HIGH, Priority.LOW):
            store.end(store.leased(function=b"g", priority=priority), Event.FAIL)
        store.end(store.leased(function=b"g"))
        revived = store.leased(function=b"revived")
        store.end(revived, Event.FAIL)
        store.end(store.leased(function=b"h"), Event.FAIL)
        store.submitted(function=b"g")
        asked = ops.ShowCounts(dead=True, functions=(b"g", b"revived", b"unknown"))
        of_g = {(b"g", State.FAILED, priority): 1 for priority in (Priority.HIGH, Priority.LOW)}
        assert store.read(asked) == (of_g | {(b"revived", State.FAILED, Priority.NORMAL): 1}, None)
        (redriven,) = store.group(ops.Redrive(revived.id, b"revived"))
        assert redriven.redriven
        assert store.read(asked) == (of_g, None)
        assert store.read(ops.ShowCounts(dead=True, functions=())) == ({}, None)
        live = {(b"g", State.PENDING, Priority.NORMAL): 1}
        assert store.read(ops.ShowCounts(functions=(b"g", b"h", b"unknown"))) == (live, None)
        assert store.read(ops.CountSome(functions=(b"g", b"h", b"unknown"))) == (live, None)

    def test_the_dead_letters_of_all_functions_are_counted_page_by_page(self, store: Store) -> None:
        dead = {b"f%d" % number: 1 + number % 2 for number in range(0, 9, 3)}
        for number in range(9):
            name = b"f%d" % number
            for _ in range(dead.get(name, 0)):
                store.end(store.leased(function=name), Event.FAIL)
            store.end(store.leased(function=name))
        found: dict[bytes, int] = {}
        after: bytes | None = b""
        pages = 0
        while after is not None:
            page = store.read(ops.ShowCounts(dead=True, after=after, limit=2))
            numbers = {function: number for (function, _, _), number in page.counts.items()}
            assert not found.keys() & numbers.keys()
            found |= numbers
            after, pages = page.next, pages + 1
            assert pages <= 10, "each page continues after the last one"
        assert found == dead

    def test_joined_jobs_are_not_counted(self, store: Store) -> None:
        store.submit(*[store.job(unique=b"u") for _ in range(3)])
        store.submit(*[store.job(unique=b"u") for _ in range(3)])
        assert sum(store.counts().values()) == 1

    # ---- the first jobs of the queues ----

    def _first_in_line(self, store: Store, *functions: bytes) -> dict[bytes, int]:
        if Feature.LINES in store.engine.lacks:
            pytest.skip("the pending jobs of this engine are not in queues")
        return store.read(FirstInLine(functions))

    def test_the_oldest_of_each_functions_first_jobs_is_found(self, store: Store) -> None:
        assert self._first_in_line(store, b"f") == {}
        store.submit(*[store.job(created_us=NOW + number) for number in (5, 7)])
        store.submit(store.job(function=b"g", created_us=NOW + 9))
        assert self._first_in_line(store, b"f", b"g", b"unknown") == {b"f": NOW + 5, b"g": NOW + 9}
        assert self._first_in_line(store, b"g") == {b"g": NOW + 9}
        assert self._first_in_line(store) == {}

    def test_each_priority_has_a_queue(self, store: Store) -> None:
        for priority, number in ((Priority.HIGH, 9), (Priority.NORMAL, 8), (Priority.LOW, 5)):
            store.submit(store.job(priority=priority, created_us=NOW + number))
        assert self._first_in_line(store, b"f") == {b"f": NOW + 5}

    def test_only_pending_jobs_are_in_a_queue(self, store: Store) -> None:
        held, cancelled = store.leased(created_us=NOW + 1), store.submitted(created_us=NOW + 2)
        store.cancel(cancelled.id)
        store.submit(store.job(created_us=NOW + 1, state=State.SCHEDULED, due_us=NOW + 10**9))
        assert self._first_in_line(store, b"f") == {}
        store.submit(store.job(created_us=NOW + 7))
        assert self._first_in_line(store, b"f") == {b"f": NOW + 7}
        store.end(held, Event.RELEASE)
        assert self._first_in_line(store, b"f") == {b"f": NOW + 1}

    def test_a_delayed_job_has_waited_since_it_was_due(self, store: Store) -> None:
        store.submitted(created_us=NOW, state=State.SCHEDULED, due_us=NOW + 5)
        store.wake(NOW + 6)
        assert self._first_in_line(store, b"f") == {b"f": NOW + 5}

    # ---- lists ----

    def test_lists_are_newest_first_and_in_pages(self, store: Store) -> None:
        jobs = [store.submitted() for _ in range(7)]
        ids = [job.id for job in reversed(jobs)]
        pages, after = [], None
        while page := store.list(limit=3, after=after):
            pages.append([job.id for job in page])
            after = page[-1].id
        assert pages == [ids[:3], ids[3:6], ids[6:]]
        assert store.list(after=10**19 - 1, limit=1)[0].id == ids[0]

    def test_filters_are_combined(self, store: Store) -> None:
        for function in (b"f", b"g"):
            for unique in (b"u", b"v", b""):
                store.end(store.leased(function=function, unique=unique), Event.FAIL)
                store.end(store.leased(function=function, unique=unique))
                store.assign(store.leased(function=function, unique=unique))
            store.submitted(function=function)
            store.submitted(function=function, state=State.SCHEDULED, due_us=NOW)
            store.cancel(store.submitted(function=function).id)
            store.leased(function=b"h")
        everything = store.list()
        assert len(everything) == 26
        functions: list[bytes | None] = [None, b"f", b"h", b"unknown"]
        uniques: list[bytes | None] = [None, b"u", b"unknown"]
        for state in (None, *State):
            for wanted in functions:
                for key in uniques:
                    expected = [
                        job.id
                        for job in everything
                        if (state is None or job.state == state)
                        and (wanted is None or job.function == wanted)
                        and (key is None or job.unique == key)
                    ]
                    listed = store.list(state=state, function=wanted, unique=key)
                    assert [job.id for job in listed] == expected
                    # A limit may make another access path to the same jobs cheaper.
                    assert [job.id for job in store.list(state=state, function=wanted, unique=key, limit=2)] == (
                        expected[:2]
                    )
