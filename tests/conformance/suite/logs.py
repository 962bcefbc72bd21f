"""Logs of jobs: what is stored, read and deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.job_logs.model import Chunk, Line, lines_of, mask_from, parts_of
from mainspring.job_logs.service import AppendLogs, ReadLogs, SweepLogs
from mainspring.jobs import store as ops
from mainspring.storage.engine import Budget
from tests.conformance.suite.driver import NOW, Store
from tests.conformance.suite.fixtures import StoreFixtures

if TYPE_CHECKING:
    from collections.abc import Sequence

INFO, WARNING, ERROR = 1, 2, 3


def chunk(
    chunk_id: int,
    *levels: int,
    job: int = 7,
    namespace: str = "default",
    attempt: int = 1,
    first: int = 1,
) -> Chunk:
    """Return a chunk with a line for each level."""
    lines = [
        Line(NOW + place, level, "a.b", f"line {place}\0", {"n": place})
        for place, level in enumerate(levels or (INFO,))
    ]
    (part,) = parts_of(first, lines)
    return Chunk(chunk_id, job, namespace, b"f", attempt, NOW, *part)


class LogSuite(StoreFixtures):
    """The contract of ``mainspring.job_logs.service``."""

    @staticmethod
    def _append(store: Store, chunks: Sequence[Chunk], dropped: Sequence[tuple[int, int]] = ()) -> None:
        assert store.group(AppendLogs(chunks, dropped)) == [None]

    @staticmethod
    def _ids(
        store: Store, *, job: int = 7, namespace: str = "default", limit: int = 100, **which: int | bool | None
    ) -> list[int]:
        return [one.id for one in store.all_of(ReadLogs(namespace=namespace, job=job, limit=limit, **which))]  # type: ignore[arg-type]

    def test_chunks_are_read_as_they_were_written(self, store: Store) -> None:
        first, second = chunk(NOW, INFO, ERROR), chunk(NOW + 5, WARNING, first=3)
        self._append(store, [first, second])
        store.reopen()
        assert store.all_of(ReadLogs(namespace="default", job=7)) == [first, second]
        assert [line.message for line in lines_of(first)] == ["line 0\ufffd", "line 1\ufffd"]

    def test_each_job_has_its_own(self, store: Store) -> None:
        self._append(store, [chunk(1, job=7), chunk(2, job=8)])
        assert self._ids(store, job=7) == [1]
        assert self._ids(store, job=8) == [2]
        assert self._ids(store, job=9) == []

    def test_another_namespace_sees_nothing(self, store: Store) -> None:
        self._append(store, [chunk(1, namespace="a")])
        assert self._ids(store, namespace="a") == [1]
        assert self._ids(store) == []

    def test_filters(self, store: Store) -> None:
        self._append(store, [chunk(1, INFO), chunk(2, INFO, ERROR, attempt=2), chunk(3, WARNING, attempt=2)])
        assert self._ids(store, levels=mask_from(WARNING)) == [2, 3]
        assert self._ids(store, attempt=2) == [2, 3]
        assert self._ids(store, attempt=2, levels=mask_from(ERROR)) == [2]

    def test_both_directions(self, store: Store) -> None:
        self._append(store, [chunk(number) for number in range(1, 8)])
        assert self._ids(store, after=5) == [6, 7]
        assert self._ids(store, backward=True, limit=3) == [7, 6, 5]
        assert self._ids(store, backward=True, after=5, limit=3) == [4, 3, 2]

    @pytest.mark.parametrize("backward", [False, True])
    def test_a_read_ends_with_its_budget(self, store: Store, backward: bool) -> None:
        self._append(store, [chunk(number) for number in range(1, 8)])
        query = ReadLogs(namespace="default", job=7, backward=backward)
        page = store.read(query, Budget(rows=4, seconds=60.0, part=2))
        assert [one.id for one in page.items] == ([7, 6, 5, 4] if backward else [1, 2, 3, 4])
        assert page.next == 4

    def test_chunks_are_dropped(self, store: Store) -> None:
        self._append(store, [chunk(1), chunk(2), chunk(3, job=8)])
        self._append(store, [chunk(4)], [(7, 2), (7, 3), (7, 99)])
        assert self._ids(store) == [1, 4]
        assert self._ids(store, job=8) == [3], "only chunks of the given job are dropped"

    def test_the_oldest_chunks_are_swept(self, store: Store) -> None:
        self._append(store, [chunk(1), chunk(2, job=8), chunk(3), chunk(4)])
        assert store.group(SweepLogs(4, 2)) == [2]
        assert (self._ids(store), self._ids(store, job=8)) == ([3, 4], [])
        assert store.group(SweepLogs(4, 2)) == [1]
        assert store.group(SweepLogs(4, 2)) == [0]
        assert self._ids(store) == [4]

    def test_the_log_of_a_deleted_job_is_deleted(self, store: Store) -> None:
        first, second = store.leased(), store.leased()
        for number, job in enumerate((first, second)):
            store.end(job)
            self._append(store, [chunk(number + 1, job=job.id)])
        (deleted, _) = store.group(ops.DeleteEnded(first.id), AppendLogs([]))
        assert deleted.deleted
        assert (self._ids(store, job=first.id), self._ids(store, job=second.id)) == ([], [2])

    def test_an_id_that_is_taken_harms_nothing_else(self, store: Store) -> None:
        """The clock was set back: the group with it must not fail, as it has jobs of others."""
        self._append(store, [chunk(1)])
        job = store.job()
        assert store.group(AppendLogs([chunk(1, ERROR), chunk(2)]), ops.Submit([job])) == [None, {}]
        assert self._ids(store) == [1, 2]
