"""Calls about series and errors of functions, without a face."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api.functions import ReadErrors, ReadFunctionSeries
from mainspring.api.handlers.namespaces import SeriesCalls, quantile
from mainspring.api.request import ApiError, Code
from mainspring.clock import time_of, to_us
from mainspring.features import Feature
from mainspring.jobs.attempts import BOUNDS
from mainspring.series import HALF_HOUR, MINUTE, Bucket, ErrorGroup, Row, SaveSeries, begin_of

from .a_node import Node, opened, run

if TYPE_CHECKING:
    from mainspring.api.request import Request


def add_calls(node: Node) -> None:
    node.api.add(SeriesCalls(node.reads, node.service.handles, node.clock).handlers)


async def save(node: Node, *rows: Row) -> None:
    node.service.commits.put(SaveSeries(rows, {}), lambda _: None, lambda _: None)
    await node.committed()


def row(node: Node, step: int, steps_ago: int, bucket: Bucket, term: int = 1, function: bytes = b"f") -> Row:
    return Row("default", function, step, begin_of(step, node.clock.wall()) - steps_ago * step, term, bucket)


def test_a_series_has_all_buckets_and_adds_those_of_all_nodes() -> None:
    async def test() -> None:
        async with opened() as node:
            add_calls(node)
            first = Bucket(5, {"succeeded": 3, "failed": 1}, [0, 4], 8000, [0, 0, 0, 4], 80_000)
            await save(
                node,
                row(node, MINUTE, 1, first),
                row(node, MINUTE, 1, Bucket(1, {"succeeded": 1}), term=2),
                row(node, MINUTE, 60, Bucket(9)),
                row(node, MINUTE, 1, Bucket(9), function=b"g"),
            )
            series = await node.api.call(ReadFunctionSeries("f"))
            assert (series.step, len(series.buckets)) == (60, 60)
            assert series.buckets[-1].at == "2023-11-14T22:13:00.000000Z"
            bucket = series.buckets[-2]
            assert (bucket.submitted, bucket.succeeded, bucket.failed, bucket.retried) == (6, 4, 1, 0)
            assert bucket.wait is not None
            *numbers, counts = msgspec.structs.astuple(bucket.wait)
            assert numbers == pytest.approx([4, 0.002, 0.003, 0.0048])
            assert counts == [0, 4]
            assert series.bounds == list(BOUNDS)
            assert sum(one.submitted for one in series.buckets) == 6, "the bucket of an hour ago is over"
            assert series.buckets[0].wait is None
            now = begin_of(MINUTE, node.clock.wall())
            part = await node.api.call(
                ReadFunctionSeries("f", since=time_of(to_us(now - 60)), until=time_of(to_us(now)))
            )
            assert [one.submitted for one in part.buckets] == [6]

    run(test())


def test_errors_are_grouped_over_nodes_and_half_hours() -> None:
    async def test() -> None:
        async with opened() as node:
            add_calls(node)
            job = node.service.table.next_id()
            await save(
                node,
                row(node, HALF_HOUR, 3, Bucket(errors={"A": ErrorGroup(2, 1, 20_000_000, 0, "old")})),
                row(node, HALF_HOUR, 0, Bucket(errors={"A": ErrorGroup(1, 30_000_000, 40_000_000, job, "new")})),
                row(node, HALF_HOUR, 0, Bucket(errors={"B": ErrorGroup(9, 1, 1, 0, "b")}), term=2),
            )
            answer = await node.api.call(ReadErrors("f"))
            assert [(one.type, one.number) for one in answer.errors] == [("B", 9), ("A", 3)]
            assert answer.errors[1].message == "new"
            assert answer.errors[1].handle == node.service.handles.of(job).decode()
            assert answer.errors[1].last_at == "1970-01-01T00:00:40.000000Z"
            assert (await node.api.call(ReadErrors("g"))).errors == []
            half_hours = await node.api.call(ReadFunctionSeries("f", step="half_hour"))
            assert (half_hours.step, len(half_hours.buckets)) == (1800, 48)

    run(test())


def test_a_store_without_series_says_so() -> None:
    async def test() -> None:
        async with opened(lacks=frozenset({Feature.SERIES})) as node:
            add_calls(node)
            assert await node.code(ReadFunctionSeries("f")) is Code.UNSUPPORTED

    run(test())


def test_a_token_for_other_functions_sees_nothing() -> None:
    async def test() -> None:
        async with opened() as node:
            add_calls(node)
            caller = Caller("c", (Grant(Role.VIEWER, functions=("pay*",)),))
            await node.api.call(ReadErrors("pay"), caller=caller)
            requests: tuple[Request[Any], ...] = (ReadErrors("f"), ReadFunctionSeries("f"))
            for request in requests:
                with pytest.raises(ApiError) as caught:
                    await node.api.call(request, caller=caller)
                assert caught.value.problem.code is Code.FORBIDDEN

    run(test())


def test_quantiles_lie_within_their_bins() -> None:
    assert quantile([10], 0.5) == pytest.approx(BOUNDS[0] / 2)
    assert quantile([0, 10, 10], 1.0) == BOUNDS[2]
    assert quantile([0] * len(BOUNDS) + [4], 0.5) == BOUNDS[-1], "longer than all bounds"
    assert quantile([], 0.5) == 0.0


def test_a_bucket_without_a_number_of_waiting_jobs_has_that_before_it() -> None:
    async def test() -> None:
        async with opened() as node:
            add_calls(node)
            now = round(node.clock.wall() * 1_000_000)
            await save(
                node,
                row(node, MINUTE, 6, Bucket(1)),  # of a node that does not count them
                row(node, MINUTE, 5, Bucket(waiting=8, waiting_us=now - 300_000_000)),
                row(node, MINUTE, 5, Bucket(waiting=6, waiting_us=now - 290_000_000), term=2),
                row(node, MINUTE, 3, Bucket(1)),
                row(node, MINUTE, 1, Bucket(waiting=0, waiting_us=now - 60_000_000)),
            )
            series = await node.api.call(ReadFunctionSeries("f"))
            assert [one.waiting for one in series.buckets[-8:]] == [None, None, 6, 6, 6, 6, 0, 0]

    run(test())
