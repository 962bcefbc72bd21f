"""Calls about one namespace: its figures, and the nodes with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.unit.nodes.rows import row as node_row

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api import functions as functions_requests
from mainspring.api import jobs, namespaces, nodes
from mainspring.api.handlers import functions
from mainspring.api.handlers import namespaces as answers
from mainspring.api.handlers.namespaces import KEPT_FOR, NamespaceCalls
from mainspring.api.handlers.nodes import SingleNodeCalls
from mainspring.api.handlers.registry import Api
from mainspring.api.submitting import JobOptions, Submit
from mainspring.features import Feature
from mainspring.jobs.model import Priority, State, failure
from mainspring.nodes.model import WorkerRow
from mainspring.series import HALF_HOUR, MINUTE, Bucket, ErrorGroup, Row, SaveSeries, begin_of
from mainspring.server.metrics import OldestByNamespace

from .a_node import Node, opened, run

if TYPE_CHECKING:
    from mainspring.nodes.model import NodeRow

PAY = Caller("pay", (Grant(Role.VIEWER, "shop", ("pay*",)),))


def add_calls(node: Node, *others: NodeRow) -> None:
    ages = OldestByNamespace(node.service.roster.functions, node.reads, node.clock)
    node.api.add(NamespaceCalls(node.service, node.reads, node.clock, lambda: others, ages.of, node.dead).handlers)


async def save(node: Node, *rows: Row) -> None:
    node.service.commits.put(SaveSeries(rows, {}), lambda _: None, lambda _: None)
    await node.committed()


def row(node: Node, function: bytes, bucket: Bucket, *, step: int = MINUTE, ago: int = 1, **keys: Any) -> Row:
    found = Row("shop", function, step, begin_of(step, node.clock.wall()) - ago * step, 1, bucket)
    return found._replace(**keys)


async def status(node: Node, namespace: str = "shop", caller: Caller | None = None) -> namespaces.NamespaceStatus:
    request = namespaces.ShowNamespace(namespace=namespace)
    return await (node.api.call(request) if caller is None else node.api.call(request, caller=caller))


def test_jobs_are_counted_by_state_in_one_namespace() -> None:
    async def test() -> None:
        async with opened() as node:
            elsewhere = node_row(2, functions=(b"shop\x1fpay", b"pay"))
            add_calls(node, msgspec.structs.replace(elsewhere, loads=((1, 4), (1, 50))))
            node.worker(b"shop\x1fpay")
            for function, number in ((b"pay", 3), (b"mail", 1)):
                for _ in range(number):
                    await node.api.call(Submit(function, b"", namespace="shop"))
            await node.api.call(Submit(b"mail", b"", options=JobOptions(delay=60.0), namespace="shop"))
            await node.api.call(Submit(b"pay", b""))
            await node.committed()
            seen = await status(node)
            assert seen.jobs == namespaces.JobCounts(total=5, waiting=3, running=5, scheduled=0)
            assert seen.functions == 2
            assert (await status(node, "default")).jobs == namespaces.JobCounts(1, 1, 50, 0)
            assert (await status(node, "none")).jobs == namespaces.JobCounts(0, 0, 0, 0)
            assert (await status(node, caller=PAY)).jobs == namespaces.JobCounts(3, 2, 5, 0)

    run(test())


def test_functions_with_trouble_come_first_with_their_last_hour() -> None:
    async def test() -> None:
        async with opened() as node:
            add_calls(node)
            node.worker(b"shop\x1fpay")
            for function, number in ((b"pay", 3), (b"mail", 1), (b"scan", 2)):
                for _ in range(number):
                    await node.api.call(Submit(function, b"", namespace="shop"))
            await node.api.call(functions_requests.PauseFunction("scan", namespace="shop"))
            node.clock.advance(60)  # workers have had the time to connect
            error = ErrorGroup(4, 1, 2, 0, "no disk")
            outcomes = {"succeeded": 5, "failed": 1, "retried": 2, "cancelled": 9}
            await save(
                node,
                row(node, b"burn", Bucket(errors={"OSError": error}), step=HALF_HOUR, ago=0),
                row(node, b"pay", Bucket(submitted=7, outcomes=outcomes), ago=3),
                row(node, b"pay", Bucket(submitted=1), ago=3, term=2),
                row(node, b"pay", Bucket(submitted=50), ago=3, namespace="other"),
            )
            found = (await status(node)).troubled
            assert [one.function for one in found] == ["mail", "burn", "pay", "scan"]
            mail, burn, pay, scan = found
            assert (mail.waiting, mail.registered, burn.failures) == (1, False, 4)
            assert (pay.workers, pay.registered, scan.paused, scan.waiting) == (1, True, True, 2)
            for numbers, expected in ((pay.submitted, 8), (pay.succeeded, 5), (pay.not_succeeded, 3)):
                assert numbers is not None
                assert (len(numbers), numbers[-4], sum(numbers)) == (60, expected, expected)
            assert [one.function for one in (await status(node, caller=PAY)).troubled] == ["pay"]
            await save(node, row(node, b"pay", Bucket(submitted=9), ago=0))
            kept = (await status(node)).troubled[2].submitted
            node.clock.advance(KEPT_FOR)
            fresh = (await status(node)).troubled[2].submitted
            assert kept is not None
            assert fresh is not None
            assert (sum(kept), sum(fresh)) == (8, 17)

    run(test())


def test_a_function_with_dead_letters_alone_is_listed_for_callers_who_may_see_it() -> None:
    async def test() -> None:
        async with opened(lacks=frozenset({Feature.SERIES})) as node:
            add_calls(node)
            side = node.worker(b"shop\x1fpay", b"shop\x1fmail", b"shop\x1fidle", places=9)
            for function in (b"pay", b"mail", b"mail"):
                await node.api.call(Submit(function, b"", namespace="shop"))
            for held in side.given:
                node.service.settling.failed(held, failure("E", "why"), final=True)
            await node.committed()
            assert [(one.function, one.dead_letters) for one in (await status(node, caller=PAY)).troubled] == [
                ("pay", 1)
            ]
            expected = [("mail", 2), ("pay", 1)]
            assert [(one.function, one.dead_letters) for one in (await status(node)).troubled] == expected
            await node.api.call(Submit(b"new", b"", namespace="shop"))
            await node.api.call(jobs.RetryJob(side.given[0].handle.decode(), namespace="shop"))
            kept = {one.function: one.dead_letters for one in (await status(node)).troubled}
            assert kept == {"new": 0, "mail": 2, "pay": 1}
            node.clock.advance(KEPT_FOR)
            fresh = {one.function: one.dead_letters for one in (await status(node)).troubled}
            assert fresh == {"new": 0, "mail": 2, "pay": 0}

    run(test())


def test_dead_letters_of_functions_that_no_node_has_in_memory_are_shown() -> None:
    async def test() -> None:
        async with opened() as node:
            add_calls(node)
            for function, number in ((b"shop\x1fpay", 2), (b"shop\x1fmail", 3), (b"other", 4)):  # as after a restart
                node.store.tables.counts.add(function, State.FAILED, Priority.NORMAL, number)
            found = await status(node)
            assert [(one.function, one.dead_letters) for one in found.troubled] == [("mail", 3), ("pay", 2)]
            assert (found.functions, found.dead_letters) == (0, 5)
            found = await status(node, caller=PAY)
            assert [(one.function, one.dead_letters) for one in found.troubled] == [("pay", 2)]
            assert found.dead_letters == 2

    run(test())


def test_dead_letters_of_too_many_functions_have_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with opened() as node:
            add_calls(node)
            monkeypatch.setattr(functions, "MOST_PAGES", 1)
            for number in range(1001):
                node.store.tables.counts.add(b"shop\x1ff%04d" % number, State.FAILED, Priority.NORMAL)
            node.worker(b"shop\x1ff1000")
            await node.api.call(Submit(b"f1000", b"", namespace="shop"))
            found = await status(node)
            assert found.dead_letters is None
            assert [one.dead_letters for one in found.troubled if one.function == "f1000"] == [1]

    run(test())


def test_a_node_without_series_lists_functions_without_hours() -> None:
    async def test() -> None:
        async with opened(lacks=frozenset({Feature.SERIES})) as node:
            add_calls(node)
            await node.api.call(Submit(b"mail", b"", namespace="shop"))
            found = (await status(node)).troubled
            assert [(one.function, one.waiting, one.submitted) for one in found] == [("mail", 1, None)]

    run(test())


def test_scheduled_jobs_do_not_wait() -> None:
    async def test() -> None:
        async with opened() as node:
            add_calls(node)
            await node.api.call(Submit(b"mail", b"", options=JobOptions(delay=60.0), namespace="shop"))
            seen = await status(node)
            assert seen.jobs == namespaces.JobCounts(total=1, waiting=0, running=0, scheduled=1)
            assert seen.oldest_waiting is None

    run(test())


def test_the_oldest_waiting_job_is_that_of_the_namespace() -> None:
    async def test() -> None:
        async with opened() as node:
            add_calls(node)
            await node.api.call(Submit(b"old", b""))
            node.clock.advance(10)
            await node.api.call(Submit(b"mail", b"", namespace="shop"))
            node.clock.advance(20)
            await node.api.call(Submit(b"pay", b"", namespace="shop"))
            await node.committed()
            node.clock.advance(5)
            assert (await status(node)).oldest_waiting == namespaces.OldestJob("mail", 25)
            assert (await status(node, caller=PAY)).oldest_waiting == namespaces.OldestJob("pay", 5)
            assert (await status(node, "default")).oldest_waiting == namespaces.OldestJob("old", 35)

    run(test())


def test_recent_attempts_are_those_of_five_minutes_and_the_one_under_way_at_all_nodes() -> None:
    async def test() -> None:
        async with opened() as node:
            add_calls(node)
            await save(
                node,
                row(node, b"pay", Bucket(70, {"succeeded": 50, "retried": 2})),
                row(node, b"mail", Bucket(20, {"succeeded": 10}), ago=5, term=2),
                row(node, b"pay", Bucket(900), ago=6),
                row(node, b"pay", Bucket(5, {"succeeded": 6}), ago=0),
                row(node, b"pay", Bucket(900), namespace="default"),
            )
            under_way = node.clock.wall() % MINUTE
            recent = (await status(node)).recent
            assert recent is not None
            assert (recent.submitted, recent.succeeded, recent.retried) == (95, 66, 2)
            assert recent.seconds == pytest.approx(300 + under_way)
            assert recent.succeeded_per_second == pytest.approx(66 / recent.seconds)
            seen = (await status(node, caller=PAY)).recent
            assert seen is not None
            assert (seen.submitted, seen.succeeded) == (75, 56)

    run(test())


def test_failing_functions_have_their_last_errors() -> None:
    async def test() -> None:
        async with opened() as node:
            add_calls(node)
            job = node.service.table.next_id()
            errors = {"A": ErrorGroup(3, 1, 10_000_000, 0, "old"), "B": ErrorGroup(1, 1, 20_000_000, job, "new")}
            await save(
                node,
                row(node, b"pay", Bucket(errors=errors), step=HALF_HOUR, ago=0),
                row(node, b"mail", Bucket(errors={"A": ErrorGroup(9, 1, 1, 0, "m")}), step=HALF_HOUR),
                row(node, b"pay", Bucket(errors={"A": ErrorGroup(90, 1, 1, 0, "m")}), step=HALF_HOUR, ago=2),
            )
            failing = (await status(node)).failing
            assert failing is not None
            handle = node.service.handles.of(job).decode()
            pay = namespaces.FailingFunction("pay", 4, "1970-01-01T00:00:20.000000Z", "B", "new", handle)
            assert [one.function for one in failing.functions] == ["mail", "pay"]
            assert failing.functions[1] == pay
            seen = (await status(node, caller=PAY)).failing
            assert seen is not None
            assert seen.functions == [pay]

    run(test())


def test_buckets_are_read_again_after_some_seconds() -> None:
    async def test() -> None:
        async with opened() as node:
            add_calls(node)

            async def submitted() -> int:
                recent = (await status(node)).recent
                assert recent is not None
                return recent.submitted

            assert await submitted() == 0
            await save(node, row(node, b"pay", Bucket(7)))
            assert await submitted() == 0
            node.clock.advance(KEPT_FOR)
            assert await submitted() == 7

    run(test())


def test_buckets_are_added_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "PAGE_ROWS", 2)

    async def test() -> None:
        async with opened() as node:
            add_calls(node)
            rows = [row(node, b"f%d" % number, Bucket(1), ago=1 + number % 3) for number in range(7)]
            await save(node, *rows, row(node, b"f", Bucket(100), ago=-1))
            recent = (await status(node)).recent
            assert recent is not None
            assert recent.submitted == 7

    run(test())


def test_a_store_without_series_has_counts_alone() -> None:
    async def test() -> None:
        async with opened(lacks=frozenset({Feature.SERIES})) as node:
            add_calls(node)
            seen = await status(node)
            assert (seen.recent, seen.failing) == (None, None)

    run(test())


def test_nodes_have_the_figures_of_one_namespace() -> None:
    async def test() -> None:
        row = node_row(1, name="a", capacity=90, running=60, functions=(b"pay", b"shop\x1fpay", b"shop\x1fmail"))
        worker = WorkerRow(1, "w", 4, 2, True, False, True, 0, "1.0", ("shop",))
        others = WorkerRow(2, "v", 9, 9, True, False, True, 0, "1.0", ("default",))
        row = msgspec.structs.replace(row, loads=((1, 50), (1, 2), (1, 3)), workers=(worker, others), slots=13)
        api = Api(SingleNodeCalls(lambda: row).handlers, enter=lambda _: None)
        (node,) = (await api.call(namespaces.ListNamespaceNodes(namespace="shop"))).items
        assert (node.workers, node.slots, node.running, node.functions) == (1, 4, 5, ["pay", "mail"])
        assert await api.call(namespaces.ShowNamespaceNode("1", namespace="shop")) == node
        seen = await api.call(namespaces.ShowNamespaceNode("a", namespace="shop"), caller=PAY)
        assert (seen.running, seen.functions) == (2, ["pay"])
        # Callers of a part of the namespaces get no sums of all of them from the call about whole nodes, either.
        (whole,) = (await api.call(nodes.ListNodes(namespace="shop"))).items
        assert (whole.jobs, whole.slots, whole.prefetch) == (60, 13, 90)
        (part,) = (await api.call(nodes.ListNodes(namespace="shop"), caller=PAY)).items
        assert (part.jobs, part.slots, part.prefetch) == (2, None, None)

    run(test())
