"""Series of functions: what is stored, read and deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mainspring.series import (
    HALF_HOUR,
    MINUTE,
    Bucket,
    ErrorGroup,
    ReadNamespaceSeries,
    ReadSeries,
    Row,
    SaveSeries,
)
from mainspring.storage.engine import Budget
from tests.conformance.suite.fixtures import StoreFixtures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.conformance.suite.driver import Store

KEEP_ALL = {MINUTE: 0, HALF_HOUR: 0}


def row(
    at: int, number: int = 1, *, term: int = 1, step: int = MINUTE, function: bytes = b"f", namespace: str = "default"
) -> Row:
    """Return a bucket."""
    bucket = Bucket(number, {"succeeded": number}, [0, number], 7, [number], 8, {"E": ErrorGroup(1, 2, 3, 0, "why")})
    return Row(namespace, function, step, at, term, bucket)


class SeriesSuite(StoreFixtures):
    """The contract of ``mainspring.series``."""

    @staticmethod
    def _save(store: Store, *rows: Row, oldest: Mapping[int, int] = KEEP_ALL) -> None:
        assert store.group(SaveSeries(rows, oldest)) == [None]

    @staticmethod
    def _read(store: Store, since: int = 0, *, step: int = MINUTE, function: bytes = b"f") -> list[Row]:
        return store.all_of(ReadSeries(namespace="default", function=function, step=step, since=since))

    def test_buckets_are_read_as_they_were_written(self, store: Store) -> None:
        rows = [row(60), row(120, term=2), row(120, 3, term=1)]
        self._save(store, *rows)
        store.reopen()
        assert self._read(store) == [rows[0], rows[2], rows[1]]
        assert self._read(store, 120) == [rows[2], rows[1]]

    def test_each_function_step_and_namespace_has_its_own(self, store: Store) -> None:
        self._save(store, row(1800), row(1800, 2, step=HALF_HOUR), row(1800, 3, function=b"g"), row(0, namespace="a"))
        assert self._read(store) == [row(1800)]
        assert self._read(store, step=HALF_HOUR) == [row(1800, 2, step=HALF_HOUR)]
        assert self._read(store, function=b"g") == [row(1800, 3, function=b"g")]
        (other,) = store.all_of(ReadSeries(namespace="a", function=b"f", step=MINUTE, since=0))
        assert other.namespace == "a"

    def test_the_buckets_of_a_namespace_are_read_by_their_times(self, store: Store) -> None:
        own = [
            row(60, function=b"g"),
            row(120, function=b"f"),
            row(120, function=b"f", term=2),
            row(120, function=b"h"),
        ]
        self._save(store, *reversed(own), row(60, namespace="a"), row(0), row(1800, step=HALF_HOUR))
        query = ReadNamespaceSeries(namespace="default", step=MINUTE, since=60)
        assert store.all_of(query) == own
        assert store.all_of(query, Budget(rows=1, part=1)) == own, "page by page"
        assert store.all_of(msgspec.structs.replace(query, namespace="a")) == [row(60, namespace="a")]
        assert store.all_of(msgspec.structs.replace(query, step=HALF_HOUR)) == [row(1800, step=HALF_HOUR)]

    def test_a_bucket_replaces_the_one_before(self, store: Store) -> None:
        self._save(store, row(60))
        assert store.group(SaveSeries([row(60, 5)], KEEP_ALL), SaveSeries([row(60, 6)], KEEP_ALL)) == [None, None]
        assert self._read(store) == [row(60, 6)]

    def test_old_buckets_are_deleted(self, store: Store) -> None:
        self._save(store, *[row(at, step=step) for at in (0, 1800, 3600) for step in (MINUTE, HALF_HOUR)])
        self._save(store, oldest={MINUTE: 3600, HALF_HOUR: 1800})
        assert [one.at for one in self._read(store)] == [3600]
        assert [one.at for one in self._read(store, step=HALF_HOUR)] == [1800, 3600]

    def test_a_read_ends_with_its_budget(self, store: Store) -> None:
        self._save(store, *[row(60 * number) for number in range(7)])
        query = ReadSeries(namespace="default", function=b"f", step=MINUTE, since=0)
        page = store.read(query, Budget(rows=4, seconds=60.0, part=2))
        assert [one.at for one in page.items] == [0, 60, 120, 180]
        assert [one.at for one in store.read(query.__class__(**{**_fields(query), "after": page.next})).items] == [
            240,
            300,
            360,
        ]


def _fields(query: ReadSeries) -> dict[str, object]:
    return {name: getattr(query, name) for name in query.__struct_fields__}
