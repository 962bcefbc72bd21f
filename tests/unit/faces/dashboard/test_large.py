"""Drawings and pages of very much: opening them counts the shapes, and compares the numbers with those of the tables."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
from tests.unit.api.a_node import run

from mainspring.api.access import MarkInfo
from mainspring.api.functions import BucketInfo, FunctionInfo, Series
from mainspring.api.namespaces import NamespaceNode
from mainspring.api.nodes import NodeInfo
from mainspring.api.schedules import FireInfo, ScheduleDetails, ScheduleInfo, ScheduleLine, Timeline, TimelineBucket
from mainspring.faces.dashboard.drawings.schedules import OCCASIONS
from mainspring.faces.dashboard.pages.schedules import MOST_RELATIVES, ROWS

from .a_browser import browser_of

MIDNIGHT = dt.datetime(2030, 1, 31, tzinfo=dt.UTC)
LIGHT = 100 * 1024
"""Bytes of a page."""


def at(seconds: float) -> str:
    return (MIDNIGHT + dt.timedelta(seconds=seconds)).isoformat()


def schedule(name: str, **given: Any) -> ScheduleInfo:
    values: dict[str, Any] = {"function": "report", "when": "0 * * * *", "timezone": "UTC", "state": "active"}
    values |= {
        "next_at": at(90_000),
        "last_at": at(0),
        "waiting": 0,
        "origin": "command",
        "app": None,
        "parents": [],
        "fault": None,
    }
    return ScheduleInfo(**(values | {"name": name} | given))


def fire(name: str, number: int) -> FireInfo:
    values: dict[str, Any] = dict.fromkeys(FireInfo.__struct_fields__) | {
        "schedule": name,
        "state": "fired",
        "attempt": 1,
    }
    return FireInfo(
        **(values | {"cause": "time", "finished": True, "outcome": "succeeded", "fire_time": at(3600 * number)})
    )


def test_the_day_of_a_thousand_schedules_is_a_light_page() -> None:
    async def test() -> None:
        names = [f"department.{number:04}.report" for number in range(1000)]

        def timeline(query: dict[str, list[str]]) -> Timeline:
            step = int(query["step"][0])
            buckets = [TimelineBucket(at(begin), 60, 59, 1, 0, 0) for begin in range(0, 86_400, step)]
            lines = [
                ScheduleLine(name, "report", "active", complete=True, buckets=buckets) for name in query["schedules"]
            ]
            return Timeline(lines, since=at(0), until=at(86_400), step=step)

        answers = {"/timeline": timeline, "/schedules": {"items": [schedule(name) for name in names]}}
        browser = browser_of(
            answers | {"/fires/outcomes": {"items": [fire(name, 0) for name in names]}}, MIDNIGHT.timestamp() + 43_200
        )
        page = await browser.open("/schedules")
        assert (len(page.rows(0)), len(page.rows(1))) == (ROWS, ROWS)
        assert len(page.answer.body) < LIGHT
        assert sum(len(page.main.one("svg").all(tag)) for tag in ("text", "rect", "line")) < 500
        assert "The drawing has the 50 schedules of the list below." in page.main.text

    run(test())


def test_a_family_of_a_hundred_is_a_light_page() -> None:
    async def test() -> None:
        info = msgspec.structs.asdict(schedule("child", parents=[f"parent{number}" for number in range(50)]))
        empty: dict[str, Any] = dict.fromkeys(ScheduleDetails.__struct_fields__) | {
            "exclude": [],
            "tags": [],
            "version": 1,
        }
        details = ScheduleDetails(
            **(empty | info | {"misfire": "skip", "jitter": 0, "misfire_after": 1, "priority": "normal"})
            | {"overlap": "allow", "wait_for_children": False, "payload": b"", "unique": "", "revision": "r"}
            | {"payload_size": 0}
        )
        relatives = [schedule(f"grandchild{number}", parents=["child"]) for number in range(50)]
        fires = {"items": [fire("child", number) for number in range(OCCASIONS)], "next": None}
        answers = {"/fires": fires, "/schedules/child": details, "/schedules": {"items": relatives}}
        answers["/next"] = {"schedule": "child", "paused": False, "times": [at(90_000)]}
        page = await browser_of(answers, MIDNIGHT.timestamp() + 99_999).open("/schedules/child")
        assert len(page.main.one("svg").all("text", class_="glyph")) == OCCASIONS * (2 * MOST_RELATIVES + 1)
        assert "90 more parents and children are not in the drawing" in page.main.text
        assert [len(row) for row in page.rows(0)] == [2 * MOST_RELATIVES + 2] * OCCASIONS
        assert page.rows(0)[0][1] == "✔ succeeded"
        assert len(page.answer.body) < LIGHT

    run(test())


def test_a_fleet_of_many_nodes_says_what_a_cell_is() -> None:
    async def test() -> None:
        fields = dict.fromkeys((*NamespaceNode.__struct_fields__, *NodeInfo.__struct_fields__))
        fields |= {"state": "live", "version": "1", "beats": 1, "lease": 15.0, "lease_left": 9.0, "slots": 64}
        fields |= {"workers": 1, "functions": [], "recoveries": [], "weight": 1, "jobs": 0}
        nodes = [fields | {"name": f"n{number}", "term": number, "running": number % 65} for number in range(100)]
        answers = {"/nodes": {"items": nodes}}
        page = await browser_of(answers, 0.0).open("/nodes")
        assert "A cell is 10 slots" in page.main.text
        assert "60 more nodes are in the table alone" in page.main.text

    run(test())


def test_a_busy_function_is_a_light_page() -> None:
    async def test() -> None:
        info: dict[str, Any] = dict.fromkeys(FunctionInfo.__struct_fields__) | {
            "function": "f",
            "paused": False,
            "registered": True,
        }
        for step, number in (("minute", 60), ("half_hour", 48)):
            seconds = 86_400 / 48 if step == "half_hour" else 60.0
            kinds = ("submitted", "succeeded", "failed", "retried", "timed_out", "lost", "cancelled", "released")
            counts = dict.fromkeys((*kinds, "snoozed", "waiting"), 1234)
            buckets = [
                BucketInfo(at=at(seconds * place), wait=None, run=None, **(counts | {"waiting": place}))
                for place in range(number)
            ]
            marks = [MarkInfo(f"deploy {place}", at(seconds * place), "ann") for place in range(20)]
            answers = {
                "/series": Series("f", seconds, buckets),
                "/errors": {"function": "f", "since": at(0), "errors": []},
            }
            answers |= {
                "/functions/f": FunctionInfo(
                    **(info | dict.fromkeys(("waiting", "running", "workers", "running_at_all_nodes"), 1))
                )
            }
            browser = browser_of(answers | {"/marks": {"items": marks}}, MIDNIGHT.timestamp() + 90_000)
            page = await browser.open(f"/functions/f?step={step}")
            assert len(page.main.one("svg").all("rect", class_="link")) == number
            assert len(page.answer.body) < LIGHT

    run(test())
