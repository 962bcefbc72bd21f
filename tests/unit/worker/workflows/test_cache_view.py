"""The reports and log lines of a worker about the runs in its memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs
from tests.unit.worker.workflows.host import Host
from tests.unit.worker.workflows.test_decider import sleeper

from mainspring.wire.gearman_protocol import Type
from mainspring.worker.workflows.decider import REPORT_INTERVAL, REPORTS_PER_LINE

if TYPE_CHECKING:
    from collections.abc import Sequence


async def reported(host: Host) -> list[dict[str, Any]]:
    """Let the worker report, and return its reports."""
    host.advance(REPORT_INTERVAL + 0.001)
    await host.settle()
    return [json.loads(args[2]) for args in await host.taken(Type.CALL) if args[1] == b"worker.cache"]


def lines(logs: Sequence[Any]) -> list[tuple[Any, ...]]:
    names = ("runs", "limit", "decisions", "hits", "replays", "evictions")
    return [tuple(one[name] for name in names) for one in logs if one["event"] == "runs of workflows in memory"]


def test_a_worker_reports_on_each_new_connection() -> None:
    async def test(host: Host) -> None:
        (first,) = await reported(host)
        host.cut()
        assert [one for _ in range(4) for one in await reported(host)] == [first]

    Host(sleeper()[0]).run(test)


async def decide(host: Host) -> None:
    host.assign()
    host.answer(await host.report())
    await host.settle()


def test_a_worker_reports_its_runs_and_logs_a_line_about_them() -> None:
    async def test(host: Host) -> None:
        (first,) = await reported(host)
        assert first == {"runs": 0, "bytes": 0, "limit": 2**28, **dict.fromkeys(("decisions", "hits"), 0)} | {
            "replays": 0,
            "evictions": 0,
        }
        with capture_logs() as logs:
            await decide(host)
            (report,) = await reported(host)
            assert report["bytes"] >= 3000
            assert {name: report[name] for name in report if name != "bytes"} == {
                "runs": 1,
                "limit": 2**28,
                "decisions": 1,
                "hits": 0,
                "replays": 0,
                "evictions": 0,
            }
            assert await reported(host) == [], "nothing has changed"
            host.node.signal("news")
            await decide(host)
            (report,) = await reported(host)
            assert (report["decisions"], report["hits"]) == (2, 1)
            assert lines(logs) == []
            for _ in range(REPORTS_PER_LINE * 2):
                await reported(host)
        assert lines(logs) == [(1, "256.0 MiB", 2, 1, 0, 0)], "one line, and none without a decision"

    with capture_logs() as logs:
        Host(sleeper()[0]).run(test)
    assert lines(logs) == [], "it has shown everything already"


def test_evictions_and_replays_are_counted_also_in_the_last_line_of_a_worker() -> None:
    async def test(host: Host) -> None:
        await reported(host)
        await decide(host)
        host.has = 0
        host.node.signal("news")
        await decide(host)
        (report,) = await reported(host)
        assert (report["runs"], report["bytes"], report["hits"]) == (0, 0, 0)
        assert (report["decisions"], report["replays"], report["evictions"]) == (2, 1, 2)

    with capture_logs() as logs:
        Host(sleeper()[0], workflow_cache=0).run(test)
    assert lines(logs) == [(0, "0 B", 2, 0, 1, 2)]
