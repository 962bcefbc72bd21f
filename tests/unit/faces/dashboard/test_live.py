"""Pages and the stream that each of them follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.unit.api.a_node import run

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api.jobs import JobProgress
from mainspring.api.listeners import DeclaredListener, DeclareListeners
from mainspring.api.namespaces import FunctionNumbers, Numbers
from mainspring.api.operations import OperationInfo
from mainspring.callbacks import awaited
from mainspring.values.model import StoredValue
from mainspring.workflows.model import Definition

from .a_browser import Element, browsing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .a_browser import Shown


def keys(kind: type[msgspec.Struct]) -> set[str]:
    return {one.encode_name for one in msgspec.structs.fields(kind)}


def live(element: Element) -> Iterator[str]:
    """Yield the keys of all live elements."""
    if "data-live" in element.attributes:
        yield element.attributes["data-live"]
    for child in element.children:
        if isinstance(child, Element):
            yield from live(child)


def stream(page: Shown) -> str:
    return page.main.attributes["data-stream"]


def test_each_live_element_gets_its_value_from_the_stream_of_its_page() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            name = 'a "b" <c>'
            job = await browser.submit(name)
            operation = await browser.call(
                "POST", "operations", {"action": "cancel", "filter": {"function": "none"}, "reason": "test"}
            )
            of_function = {f"{key}:{name}" for key in keys(FunctionNumbers)}
            shown = {f"waiting:{name}", f"running_at_all_nodes:{name}"}
            for path, possible, needed in (
                ("/", keys(Numbers) | of_function, {"waiting", "workers", "oldest_seconds", "oldest_function", *shown}),
                ("/jobs", keys(Numbers) | {"news"}, {"waiting", "running", "scheduled", "dead_letters"}),
                ("/functions", of_function, shown),
                ("/functions/a%20%22b%22%20%3Cc%3E", of_function, shown),
                (f"/jobs/{job}", keys(JobProgress), set()),
                (f"/operations/{operation['id']}", keys(OperationInfo), {"done"}),
            ):
                page = await browser.open(path)
                found = set(live(page.main))
                assert needed <= found <= possible, path
                if stream(page) or "operations" not in path:  # one that has ended has no stream
                    assert (await browser.open(stream(page))).status == 200, path

    run(test())


def test_a_page_without_a_live_subject_has_no_stream() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            job = await browser.submit("resize")
            assert f"job={job.replace(':', '%3A')}&logs=" in stream(await browser.open(f"/jobs/{job}"))
            await browser.call("POST", f"jobs/{job}/cancel", {"reason": "test"})
            ended = await browser.open(f"/jobs/{job}")
            assert (stream(ended), ended.main.all("table", class_="log")) == ("", [])
            assert stream(await browser.open("/audit")) == ""

    run(test())


def test_a_viewer_without_payloads_follows_no_log() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            job = await browser.submit("resize")
            path = stream(await browser.open(f"/jobs/{job}", token="viewer"))
            assert "job=" in path
            assert "logs=" not in path
            assert (await browser.open(path, token="viewer")).status == 200

    run(test())


@pytest.mark.parametrize("prefix", ["", "/tools"])
def test_a_stream_has_the_prefix_and_the_namespace_of_its_page(prefix: str) -> None:
    async def test() -> None:
        async with browsing(prefix=prefix) as (browser, _):
            expected = f"{prefix}/api/v1/namespaces/team/live?overview=true&troubles=true"
            assert stream(await browser.open("/?namespace=team")) == expected

    run(test())


CALLERS = {
    "admin": (Grant(Role.ADMIN, "*", payloads=True),),
    "here": (Grant(Role.VIEWER, "default"),),
    "payments": (Grant(Role.OPERATOR, "*", ("pay*",)),),
}


@pytest.mark.parametrize("caller", CALLERS)
def test_a_page_has_the_version_that_its_stream_sends_until_something_changes(caller: str) -> None:
    async def test() -> None:
        async with browsing() as (browser, built):
            for name, grants in CALLERS.items():
                browser.admit(name, Caller(name, grants, token=name))
            assert built.node.workflows is not None
            await awaited(built.node.workflows.definitions.define([Definition("payroll", "1")]))
            await browser.call("POST", "schedules", {"name": "wages", "function": "pay", "every": 3600, "args": [1]})
            await browser.call("POST", "schedules", {"name": "letters", "function": "mail", "every": 3600})
            fired = await browser.call("POST", "schedules/wages/trigger")
            await browser.call("POST", f"jobs/{fired['handle']}/cancel", {"reason": "test"})
            await browser.call("POST", "workflows", {"function": "payroll", "id": "may", "args": []})
            listener = DeclaredListener(name="pay_alert", types=["job.*"])
            await built.api.call(DeclareListeners(app="shop", listeners=[listener], functions=["pay_alert"]))
            hook = {"name": "crm", "url": "http://127.0.0.1:1025/", "types": ["node.dead"]}
            await browser.call("POST", "webhooks", hook)
            changes = {
                "/": ("schedules/wages/pause", {}),
                "/schedules": ("schedules/wages/resume", {}),
                "/schedules/wages": ("schedules/wages/pause", {}),
                "/workflows": ("workflows", {"function": "payroll", "id": "june", "args": []}),
                "/workflows/may": ("workflows/may/cancel", {"reason": "test"}),
                "/workers": None,
                "/nodes": None,
                "/events": ("jobs", {"function": "pay", "delay": 3600}),
                "/listeners": ("listeners/pay_alert/pause", {}),
                "/listeners/pay_alert": ("listeners/pay_alert/resume", {}),
            }
            if caller != "payments":  # who sees no webhooks
                changes |= {
                    "/webhooks": ("webhooks/crm/pause", {"reason": "test"}),
                    "/webhooks/crm": ("webhooks/crm/resume", {}),
                }
            for path, change in changes.items():
                page = await browser.open(path, token=caller)
                version = page.root.one("span", id="shown").attributes["data-version"]
                sent = await browser.event(stream(page), "version", caller)
                assert (version, sent["spread"]) == (sent["version"], 0.5), path
                if change is not None:
                    answer = await browser.call("POST", *change)
                    if path == "/events":
                        await browser.call("POST", f"jobs/{answer['handle']}/cancel", {"reason": "test"})
                    later = await browser.open(path, token=caller)
                    assert later.root.one("span", id="shown").attributes["data-version"] != version, path
            for path in (
                "/events?type=job.*",
                "/workers?name=x",
                "/workflows?status=open",
                "/schedules/wages?since=2030-01-01T00:00:00",
            ):
                part = await browser.open(path, token=caller)
                assert part.root.one("span", id="shown").attributes["data-version"] == "", path

    run(test())


def test_published_values_are_shown_to_those_who_may_read_payloads() -> None:
    async def test() -> None:
        async with browsing() as (browser, built):
            engine: Any = built.node.engine
            job = await browser.submit("resize")
            page = await browser.open(f"/jobs/{job}")
            assert f"values={job.replace(':', '%3A')}" in stream(page)
            assert "hidden" in page.main.one("div", id="values").attributes, "there is none yet"
            number = int(job.rpartition(":")[2])
            long = b'"' + b"x" * 600 + b'"'
            engine.tables.values[number] = {
                name: StoredValue(number, name, 2, place, 1_700_000_000_000_000, value)
                for place, (name, value) in enumerate({"<b>": b'{"x":"<i>"}', "long": long}.items(), 1)
            }
            page = await browser.open(f"/jobs/{job}")
            part = page.main.one("div", id="values")
            assert "hidden" not in part.attributes
            assert [one.text for one in part.all("dt")] == ["<b>", "long"]
            assert part.all("code")[0].text == '{"x":"<i>"}'
            assert "attempt 2" in part.all("dd")[0].text
            assert part.one("a").text == "all of it"
            assert (await browser.open(f"/api/v1/namespaces/default/jobs/{job}/values/long")).status == 200
            seen = await browser.open(f"/jobs/{job}", token="viewer")
            assert "values=" not in stream(seen)
            assert "long" not in seen.main.one("div", id="values").text
            assert (await browser.open(stream(page))).status == 200

    run(test())
