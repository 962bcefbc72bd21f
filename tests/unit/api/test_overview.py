"""The version of the first page: it changes with what matters, and about once a minute with the load."""

from __future__ import annotations

import datetime as dt
from typing import Any, TypeVar

import msgspec
import pytest

from mainspring.api.jobs import JobInfo
from mainspring.api.namespaces import (
    FailingFunction,
    Failures,
    JobCounts,
    NamespaceNode,
    NamespaceStatus,
    OldestJob,
    RecentJobs,
    StoreState,
    TroubledFunction,
)
from mainspring.api.schedules import ScheduleInfo
from mainspring.api.versions import overview_version
from mainspring.api.workflows import RunInfo

T = TypeVar("T", bound=msgspec.Struct)
NOON = dt.datetime(2030, 1, 31, 12, 0, 20, tzinfo=dt.UTC).timestamp()
ZEROS: dict[str, Any] = dict.fromkeys(RecentJobs.__struct_fields__, 0)
RECENT = RecentJobs(**(ZEROS | {"since": "2030-01-31T11:55:00Z", "seconds": 320.0, "succeeded": 7}))


def at(text: str) -> str:
    return f"2030-01-31T{text}Z"


def nothing(kind: type[T], **values: Any) -> T:
    return kind(**(dict.fromkeys(kind.__struct_fields__) | values))


def node(name: str = "a", state: str = "live", *, workers: int = 2, **more: Any) -> NamespaceNode:
    return nothing(NamespaceNode, name=name, state=state, version="1.0", workers=workers, **more)


def troubled(function: str, waiting: int = 0, *, registered: bool = True, **more: Any) -> TroubledFunction:
    return nothing(TroubledFunction, function=function, waiting=waiting, registered=registered, paused=False, **more)


def schedule(name: str, next_at: str | None, last_at: str | None = None, state: str = "active") -> ScheduleInfo:
    return nothing(ScheduleInfo, name=name, next_at=next_at, last_at=last_at, state=state, function="f")


def failing(function: str, last: str, failures: int = 3) -> FailingFunction:
    return FailingFunction(function, failures, at(last), "ValueError", "no", None)


def dead(*ended: str) -> list[JobInfo]:
    return [nothing(JobInfo, handle=f"H:{place}", ended_at=at(one)) for place, one in enumerate(ended)]


NODES = (node(),)
SCHEDULES = (schedule("nightly", at("18:00:00"), at("09:00:00")),)


def version(
    *,
    nodes: Any = NODES,
    schedules: Any = SCHEDULES,
    failed: Any = (),
    parked: Any = (),
    now: float = NOON,
    jobs: tuple[int, int] = (5, 5),
    **status: Any,
) -> str:
    waiting, running = jobs
    values: dict[str, Any] = {
        "namespace": "default",
        "jobs": JobCounts(waiting + running, waiting, running, 0),
        "functions": 9,
        "oldest_waiting": OldestJob("f", 3.0),
        "recent": RECENT,
        "failing": Failures(at("11:00:00"), []),
        "troubled": [troubled("f", 5)],
        "store": StoreState("sqlite", answers=True),
        "dead_letters": 0,
    }
    return overview_version(NamespaceStatus(**(values | status)), nodes, schedules, failed, parked, now)


CHANGES: dict[str, dict[str, Any]] = {
    "a node dies": {"nodes": [node(state="dead")]},
    "a node joins": {"nodes": [node(), node("b")]},
    "the last worker leaves": {"nodes": [node(workers=0)]},
    "the store refuses": {"store": StoreState("sqlite", answers=False)},
    "a job has waited for long": {"oldest_waiting": OldestJob("f", 301.0)},
    "a function has no worker": {"troubled": [troubled("f", 5, registered=False)]},
    "an attempt has failed": {"failing": Failures(at("11:00:00"), [failing("f", "11:59:50")])},
    "a first dead letter": {"dead_letters": 1},
    "a new dead letter, whose number is not counted yet": {"failed": dead("12:00:10")},
    "a run is parked": {"parked": [nothing(RunInfo, run="H:1@1")]},
    "another schedule is due next": {"schedules": [schedule("hourly", at("13:00:00"))]},
    "a schedule is paused": {"schedules": [schedule("nightly", at("18:00:00"), state="paused")]},
    "the fire time is another one": {"schedules": [schedule("nightly", at("19:00:00"), at("09:00:00"))]},
    "the next minute of the series": {"recent": msgspec.structs.replace(RECENT, since=at("11:56:00"))},
    "parts are missing": {"schedules": None},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_matters_changes_the_version(change: str) -> None:
    assert version(**CHANGES[change]) != version()


MANY = [troubled(f"f{number}", number, registered=False, failures=number) for number in range(1, 9)]
ERRORS = [failing(f"f{number}", "12:00:01", 9 * number) for number in range(9, 0, -1)]
OFTEN = [schedule(f"s{number}", at(f"12:00:{20 + number}"), at(f"12:00:{10 + number}")) for number in range(9)]
FIRED = [schedule(f"s{number}", at(f"12:01:{20 + number}"), at(f"12:00:{50 + number}")) for number in range(9)]
NO_CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "jobs": ({}, {"jobs": (700, 3), "functions": 10, "oldest_waiting": OldestJob("g", 9.0)}),
    "functions with work": ({}, {"troubled": [troubled("g", 9), troubled("h")]}),
    "workers": ({}, {"nodes": [node(workers=70, beats=8, lease_left=2.0, running=9)]}),
    "attempts of the same minutes": ({}, {"recent": msgspec.structs.replace(RECENT, succeeded=9999, seconds=325.0)}),
    "the time alone": ({}, {"now": NOON + 3600}),
    "functions without workers": (
        {"troubled": MANY, "jobs": (99, 0)},
        {"troubled": [troubled("g", 6, registered=False), *MANY[1:]], "jobs": (98, 9)},
    ),
    "failures within a minute": (
        {"failing": Failures(at("11:00:00"), ERRORS)},
        {"failing": Failures(at("11:00:00"), [failing("g", "12:00:59"), *ERRORS[1:]])},
    ),
    "dead letters within a minute": (
        {"dead_letters": 1100, "failed": dead("12:00:10", "12:00:09")},
        {"dead_letters": 1900, "failed": dead("12:00:59", "12:00:58")},
    ),
    "fires within a minute": ({"schedules": OFTEN}, {"schedules": FIRED, "now": NOON + 39}),
}


@pytest.mark.parametrize("load", NO_CHANGES)
def test_load_does_not_change_the_version_within_a_minute(load: str) -> None:
    before, after = NO_CHANGES[load]
    assert version(**before) == version(**after)


def test_frequent_fires_and_new_failures_change_the_version_each_minute() -> None:
    assert version(schedules=OFTEN) != version(schedules=OFTEN, now=NOON + 40)
    failures = [Failures(at("11:00:00"), [failing("f", last)]) for last in ("12:00:01", "12:00:50", "12:01:10")]
    first, same, later = (version(failing=one) for one in failures)
    assert first == same != later


def test_a_node_without_work_keeps_its_version() -> None:
    idle = RecentJobs(**(ZEROS | {"since": at("11:55:00"), "seconds": 320.0}))
    later = msgspec.structs.replace(idle, since=at("12:55:00"), seconds=340.0)
    assert version(recent=idle, troubled=[]) == version(recent=later, troubled=[], now=NOON + 3600)
    hour = [0] * 59 + [1]
    drawn = [troubled("f", submitted=hour, not_succeeded=[0] * 60)]
    assert version(recent=idle, troubled=drawn) != version(recent=later, troubled=drawn), "its drawing moves"
