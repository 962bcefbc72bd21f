"""The first page."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.unit.api.a_node import Side, run
from tests.unit.faces.rest.a_server import whole_node

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api.functions import Acknowledged
from mainspring.api.handlers import functions
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
    TroubledSubscription,
)
from mainspring.api.schedules import ScheduleInfo
from mainspring.api.workflows import RunInfo
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.errors import StoreFullError
from mainspring.faces.dashboard.app import Dashboard
from mainspring.faces.dashboard.calls import Items
from mainspring.faces.dashboard.pages.overview import delivery_troubles, troubles
from mainspring.jobs.held import Ability, Worker
from mainspring.jobs.model import failure

from .a_browser import Browser, browser_of, browsing

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from mainspring.storage.engine import Committed


NOTHING = "\N{EN DASH}"


def _node(name: str, state: str = "live", version: str = "1.0") -> NamespaceNode:
    return NamespaceNode(name, 1, state, version, None, 1, 15.0, 0, None, 0, [])


def _status(waiting: int = 0, oldest: float | None = None) -> NamespaceStatus:
    oldest_job = None if oldest is None else OldestJob("f", oldest)
    return NamespaceStatus("default", JobCounts(waiting, waiting, 0, 0), 0, oldest_job, None, None)


def test_trouble_is_said_in_sentences() -> None:
    nodes = [_node("a"), _node("b", "dead", "1.1")]
    assert troubles(_status(), nodes, workers=1) == [
        "The node b is dead.",
        "Nodes have different versions: 1.0 (a), 1.1 (b).",
    ]
    assert troubles(_status(1200), [_node("a")], workers=0) == [
        "1\N{NARROW NO-BREAK SPACE}200 jobs wait, and no worker is connected."
    ]
    assert troubles(_status(1, 301.0), [_node("a")], workers=1) == ["A job of f has waited for 5 min 1 s."]
    assert troubles(_status(1, 299.0), [_node("a")], workers=1) == []


def test_paused_and_failing_webhooks_and_listeners_are_trouble_with_a_way_to_them() -> None:
    def troubled(kind: str, name: str, paused: str | None = None, failures: int = 0) -> TroubledSubscription:
        return TroubledSubscription("webhook" if kind == "webhook" else "listener", name, paused, failures)

    paused = [troubled("webhook", name, "the receiver is gone", 5) for name in ("crm", "chat", "erp", "bi")]
    for subscriptions, sentences in (
        ([], []),
        (paused[:1], [("The webhook crm is paused: the receiver is gone.", "/webhooks/{name}", "crm")]),
        (paused, [("The webhooks crm, chat, erp and 1 more webhook are paused.", "/webhooks", "")]),
        (
            [troubled("listener", "alert", failures=1)],
            [("1 delivery to the listener alert failed for good.", "/listeners/{name}", "alert")],
        ),
        (
            [troubled("listener", "alert", "down"), troubled("listener", "note", failures=2), paused[0]],
            [
                ("The webhook crm is paused: the receiver is gone.", "/webhooks/{name}", "crm"),
                ("The listener alert is paused: down.", "/listeners/{name}", "alert"),
                ("2 deliveries to the listener note failed for good.", "/listeners/{name}", "note"),
            ],
        ),
    ):
        assert [one[:3] for one in delivery_troubles(subscriptions)] == sentences


def test_a_paused_webhook_is_trouble_for_those_who_see_it() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            browser.admit("pay", Caller("pay", (Grant(Role.OPERATOR, functions=("pay*",)),)))
            hook = {"name": "crm", "url": "http://127.0.0.1:1025/", "types": ["job.failed"]}
            await browser.call("POST", "webhooks", hook)
            before = await browser.open("/")
            assert before.main.all("p", class_="problem") == []
            await browser.call("POST", "webhooks/crm/pause", {"reason": "<b>it moves</b>"})
            page = await browser.open("/", token="viewer")
            (problem,) = page.main.all("p", class_="problem")
            assert problem.text.endswith("The webhook crm is paused: <b>it moves</b>. Show it")
            assert problem.one("a").attributes["href"] == "/webhooks/crm"
            assert "well" not in page.main.one("div", id="health").text
            versions = {one.root.one("span", id="shown").attributes["data-version"] for one in (before, page)}
            assert len(versions) == 2, "open pages learn of it"
            assert (await browser.open("/", token="pay")).main.all("p", class_="problem") == []
            assert (await browser.open("/?namespace=team")).main.all("p", class_="problem") == []
            await browser.call("POST", "webhooks/crm/resume", {})
            assert (await browser.open("/")).main.all("p", class_="problem") == []

    run(test())


def test_the_number_of_dead_letters_is_exact_where_all_were_counted() -> None:
    letter = JobInfo(**_dead("mail", "2030-01-31T11:00:00Z"))
    for items, counted, sentence in (
        (Items([letter] * 5, next="x"), 1200, "1\N{NARROW NO-BREAK SPACE}200 dead letters"),
        (Items([letter] * 5, next="x"), 5, "5 dead letters"),
        (Items([letter] * 5, next="x"), 3, "More than 5 dead letters"),  # counted before others failed
        (Items([letter] * 5, next="x"), None, "More than 5 dead letters"),
        (Items([letter]), 0, "1 dead letter"),
    ):
        status = msgspec.structs.replace(_status(0), dead_letters=counted)
        assert troubles(status, [_node("a")], workers=1, dead=items) == [f"{sentence}, the newest of mail."]


def test_acknowledged_dead_letters_and_failures_are_no_trouble() -> None:
    mail, pay = (JobInfo(**_dead(name, "2030-01-31T11:59:00Z")) for name in ("mail", "pay"))
    new = [failing(name, "2030-01-31T11:59:00Z") for name in ("mail", "pay")]
    for settled, items, counted, sentences in (
        ([("mail", 3)], Items([mail]), 3, ["Attempts of pay have failed in the last 5 min."]),
        ([("mail", 3), ("pay", 1)], Items([mail, pay]), 4, []),
        ([("mail", 3), ("pay", 1)], Items([mail] * 5, next="x"), 9, ["5 dead letters."]),
        (
            [("mail", 3)],
            Items([mail, pay], next="x"),
            9,
            ["6 dead letters, the newest of pay.", "Attempts of pay have failed in the last 5 min."],
        ),
        ([("mail", 3)], Items([mail] * 5, next="x"), 3, ["Attempts of pay have failed in the last 5 min."]),
    ):
        status = msgspec.structs.replace(
            _status(),
            dead_letters=counted,
            failing=Failures("2030-01-31T11:00:00Z", new),
            acknowledged=[Acknowledged(name, None, "ann", number) for name, number in settled],
        )
        assert troubles(status, [_node("a")], workers=1, dead=items, now=NOON) == sentences, settled


def test_failures_are_acknowledged_until_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (functions, functions):
        monkeypatch.setattr(module, "KEPT_FOR", 0.0)

    async def test() -> None:
        async with browsing() as (browser, built):
            service, side = built.node.service, Side()
            worker = Worker(side)
            service.workers.register(worker, b"mail", Ability())

            async def fail(handle: str) -> None:
                side.given.clear()
                service.workers.ready(worker, 1)
                while not side.given:  # noqa: ASYNC110 - a worker has no event for it
                    await asyncio.sleep(0)
                service.settling.failed(side.given[0], failure("ValueError", "no"), final=True)
                while (await browser.call("GET", f"jobs/{handle}"))["state"] != "failed":  # noqa: ASYNC110 - it is stored soon
                    await asyncio.sleep(0)

            first = await browser.submit("mail")
            await fail(first)
            assert "1 dead letter, the newest of mail." in (await browser.open("/")).main.text
            for number, words in ((1, "1 dead letter"), (2, "2 dead letters"), (2, "2 dead letters")):
                page = await browser.act(await browser.open("/"), "functions_acknowledge", {"reason": "seen"})
                health = page.main.one("div", id="health")
                assert page.main.all("p", class_="problem") == [], number
                assert f"Acknowledged, until the next failure: mail ({words}) by admin" in health.text
                assert health.all("details", **{"data-action": "functions_acknowledge"}) == []
                if number == 1:
                    await fail(await browser.submit("mail"))
                else:  # as many dead letters as before
                    await browser.call("POST", f"jobs/{first}/retry", {})
                    await fail(first)
                health = (await browser.open("/")).main.one("div", id="health")
                assert "2 dead letters, the newest of mail." in health.text
                assert "Acknowledged" not in health.text
            path = "/api/v1/namespaces/default/functions/unknown/acknowledge"
            refused = await browser.raw("POST", path, b"{}", {"content-type": "application/json"})
            assert refused.status == 404

    run(test())


def test_the_store_comes_first_in_all_that_may_be_wrong_at_once() -> None:
    stuck = [troubled(name, 1) for name in ("a", "b", "c", "d")]
    status = msgspec.structs.replace(_status(5, 301.0), troubled=stuck, store=StoreState("sqlite", answers=False))
    nodes = [_node("a"), _node("b", "draining"), _node("c", "suspect")]
    dead = Items([JobInfo(**_dead("mail", "2030-01-31T11:00:00Z"))], searched_to="2030-01-30T00:00:00Z")
    assert troubles(status, nodes, workers=1, dead=dead) == [
        "The store on SQLite takes no writes from the node that answers.",
        "The node b is draining.",
        "The node c is suspect.",
        "More than 1 dead letter, the newest of mail.",
        "A job of f has waited for 5 min 1 s.",
        "1 job of a waits, and no worker has registered it.",
        "1 job of b waits, and no worker has registered it.",
        "1 job of c waits, and no worker has registered it.",
    ]


def failing(function: str, last_at: str) -> FailingFunction:
    return FailingFunction(function, 3, last_at, "ValueError", "no", None)


NOON = dt.datetime(2030, 1, 31, 12, tzinfo=dt.UTC).timestamp()


def test_attempts_that_have_just_failed_are_trouble() -> None:
    def sentences(*functions: FailingFunction) -> list[str]:
        status = msgspec.structs.replace(_status(), failing=Failures("2030-01-31T11:00:00Z", list(functions)))
        return troubles(status, [_node("a")], workers=1, now=NOON)

    new = [failing(name, "2030-01-31T11:55:01Z") for name in "abcde"]
    assert sentences(failing("old", "2030-01-31T11:55:00Z")) == []
    for number, names in ((1, "a"), (2, "a and b"), (3, "a, b and c"), (4, "a, b, c and 1 more function")):
        assert sentences(*new[:number]) == [f"Attempts of {names} have failed in the last 5 min."]
    assert sentences(*new) == ["Attempts of a, b, c and 2 more functions have failed in the last 5 min."]


def parked(*names: str, **more: Any) -> Items[RunInfo]:
    nothing: dict[str, Any] = dict.fromkeys(RunInfo.__struct_fields__)
    return Items([RunInfo(**(nothing | {"id": name})) for name in names], **more)


def test_parked_runs_are_trouble() -> None:
    for found, sentence in (
        (parked("may"), "The run may is parked: its code"),
        (parked("may", "june"), "The runs may and june are parked: their code"),
        (parked("a", "b", "c", "d", "e", next="x"), "The runs a, b, c and more runs are parked: their code"),
    ):
        expected = [f"{sentence} could not make the next decision."]
        assert troubles(_status(), [_node("a")], workers=1, parked=found) == expected
    assert troubles(_status(), [_node("a")], workers=1, parked=parked()) == []


def test_the_overview_leads_to_the_parked_runs() -> None:
    async def test() -> None:
        answers: dict[str, Any] = {end: {"items": []} for end in ("/nodes", "/schedules", "/jobs", "/marks")}
        answers["/status"] = _status()
        run_of = {**dict.fromkeys(RunInfo.__struct_fields__, ""), "events": 3, "id": "may", "status": "open"}
        page = await browser_of({**answers, "/workflows": {"items": [run_of]}}, 0.0).open("/")
        assert "✖ trouble The run may is parked" in page.main.text
        (link,) = (one.attributes["href"] for one in page.main.all("a") if one.text == "Parked runs")
        assert link == "/workflows?status=parked"
        assert "Parked runs" not in (await browser_of(answers, 0.0).open("/")).main.text

    run(test())


@pytest.mark.parametrize("path", ["/", "/functions", "/functions/f"])
def test_the_numbers_of_waiting_and_running_jobs_lead_to_these_jobs(path: str) -> None:
    """A node takes jobs into its memory for its workers: they wait there, too."""

    async def test() -> None:
        async with browsing() as (browser, built):
            service, worker = built.node.service, Worker(Side())
            service.workers.register(worker, b"f", Ability())
            service.workers.ready(worker, 1)
            handles = [await browser.submit("f") for _ in range(3)]
            page = await browser.open(path)
            found = {}
            for link in page.main.all("a"):
                state = link.attributes["href"].partition("?")[2]
                if link.text.isdigit() and "state=" in state and link.text != "0":
                    listed = await browser.open(link.attributes["href"])
                    assert len(listed.rows()) == int(link.text), state
                    found[link.text] = listed.main.text
            assert handles[0] in found["1"]
            assert all(handle in found["2"] for handle in handles[1:])

    run(test())


def test_states_that_need_nobody_are_no_trouble() -> None:
    calm = [troubled("idle", 0), troubled("unknown", 5, registered=None)]
    counts = JobCounts(total=7, waiting=0, running=0, scheduled=7)
    status = msgspec.structs.replace(_status(), jobs=counts, troubled=calm, store=StoreState("sqlite", answers=True))
    for workers in (0, 1):
        assert troubles(status, [_node("a")], workers=workers, dead=Items([])) == []


def test_a_store_that_takes_no_writes_is_trouble() -> None:
    async def test() -> None:
        nothing: dict[str, Any] = {"items": []}
        answers = {"/default/nodes": {"items": [_node("a")]}, "/v1/nodes": {"items": []}}
        answers |= dict.fromkeys(("/schedules", "/marks", "/jobs"), nothing)
        texts = []
        for well in (True, False):
            status = msgspec.structs.replace(_status(), store=StoreState("sqlite", well))
            texts.append((await browser_of({"/status": status, **answers}, 0.0).open("/")).main.text)
        assert "✔ well 1 node lives. Connected workers: 0 . The store on SQLite answers." in texts[0]
        assert "✖ trouble The store on SQLite takes no writes from the node that answers." in texts[1]
        assert "well" not in texts[1]
        assert "store on SQLite answers" not in texts[1]

    run(test())


def test_a_full_store_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: MemoryEngine, group: object, committed: Committed, answer: object) -> None:
        committed(StoreFullError("full"))

    async def test() -> None:
        async with browsing() as (browser, _):
            with monkeypatch.context() as full:
                full.setattr(MemoryEngine, "commit", refuse)
                path, headers = "/api/v1/namespaces/default/jobs", {"content-type": "application/json"}
                sent = await browser.raw("POST", path, b'{"function":"f"}', headers)
                assert sent.status == 503
                assert "✖ trouble The store in memory takes no writes" in (await browser.open("/")).main.text

    run(test())


def test_the_overview_shows_queued_jobs_failures_and_next_fires() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            page = await browser.open("/")
            well = "✔ well 1 node lives. Connected workers: 0 . The store in memory answers."
            assert well in page.main.text
            await browser.submit("resize")
            schedule = {"name": "nightly", "function": "report", "cron": "30 2 * * *"}
            await browser.call("POST", "schedules", schedule)
            page = await browser.open("/")
            assert "✖ trouble 1 job waits, and no worker is connected." in page.main.text
            assert well.removeprefix("✔ well ") in page.main.text
            assert "✔ well" not in page.main.text
            assert page.rows(1)[0][0] == "nightly"
            await browser.call("POST", "schedules/nightly/pause", {})
            assert "No schedule has a next time." in (await browser.open("/")).main.text
            page = await browser.act(page, "marks_add", {"label": "web <4.2>"})
            assert "web <4.2> ·" in page.main.text
            viewer = await browser.open("/", token="viewer")
            assert (viewer.status, viewer.main.all("form")) == (200, [])

    run(test())


def troubled(function: str, waiting: int, **given: Any) -> TroubledFunction:
    values: dict[str, Any] = dict.fromkeys(TroubledFunction.__struct_fields__) | {
        "running": 0,
        "workers": 0,
        "registered": False,
        "paused": False,
        "failures": 0,
    }
    return TroubledFunction(**(values | {"function": function, "waiting": waiting} | given))


def test_jobs_of_functions_without_workers_are_trouble() -> None:
    stuck = [troubled("a", 2), troubled("b", 1), troubled("c", 5, registered=True), troubled("d", 5, paused=True)]
    status = msgspec.structs.replace(_status(13), troubled=stuck)
    assert troubles(status, [_node("a")], workers=1) == [
        "2 jobs of a wait, and no worker has registered it.",
        "1 job of b waits, and no worker has registered it.",
    ]
    oldest = msgspec.structs.replace(status, oldest_waiting=OldestJob("a", 301.0))
    assert len(troubles(oldest, [_node("a")], workers=1)) == 2, "one sentence for each function"
    assert troubles(status, [_node("a")], workers=0) == ["13 jobs wait, and no worker is connected."]


def test_the_overview_leads_to_the_oldest_job_and_names_paused_functions() -> None:
    async def test() -> None:
        answers: dict[str, Any] = {end: {"items": []} for end in ("/nodes", "/schedules", "/jobs", "/marks")}
        held = troubled("mail", 2, paused=True, registered=True, oldest_seconds=61.0)
        status = msgspec.structs.replace(_status(2, 61.0), troubled=[held], functions=1)
        page = await browser_of({**answers, "/status": status}, 0.0).open("/")
        tiles = {one.one("dt").text: one.one("dd") for one in page.main.one("dl", class_="tiles").all("div")}
        assert tiles["Oldest waiting"].text == "1 min 1 s f"
        assert tiles["Oldest waiting"].one("a").attributes["href"] == "/functions/f"
        assert page.rows()[0][:2] == ["mail ■ paused", "2 for 1 min 1 s"]
        assert "shows a first task" not in page.main.text
        idle = await browser_of({**answers, "/status": _status()}, 0.0).open("/")
        tiles = {one.one("dt").text: one.one("dd") for one in idle.main.one("dl", class_="tiles").all("div")}
        assert (tiles["Oldest waiting"].text, tiles["Oldest waiting"].all("a")) == (NOTHING, [])
        assert "shows a first task" in idle.main.text
        assert "Succeeded in" not in idle.main.text

    run(test())


def test_functions_with_trouble_are_first_with_their_last_hour() -> None:
    async def test() -> None:
        minutes = [0] * 50 + [10, 0, 0, 0, 5, 5, 5, 5, 5, 99]
        good = [0] * 59 + [3]
        stuck = troubled("mail", 2, oldest_seconds=61.0, dead_letters=0)
        busy = troubled(
            "resize", 1, registered=True, workers=3, failures=7, submitted=minutes, succeeded=good, not_succeeded=good
        )
        busy.dead_letters = 102
        status = msgspec.structs.replace(_status(3), troubled=[stuck, busy])
        mark = {"label": "web 4.2", "at": "2030-01-31T11:30:10Z", "who": "ann"}
        answers = {
            "/status": status,
            "/default/nodes": {"items": [_node("a")]},
            "/schedules": {"items": []},
            "/jobs": {"items": []},
            "/marks": {"items": [mark, mark | {"at": "2030-01-31T10:59:00Z"}, mark | {"at": "2030-01-31T12:02:00Z"}]},
        }
        noon = dt.datetime(2030, 1, 31, 12, 0, 20, tzinfo=dt.UTC).timestamp()
        page = await browser_of(answers, noon).open("/")
        assert page.rows()[0] == ["mail", "2 for 1 min 1 s", "0", "✖ none", "0", "0", NOTHING, NOTHING]
        assert page.rows()[1] == ["resize", "1", "0", "3", "7", "102", "5.0 · 0.0", ""]
        dead = [one.attributes["href"] for one in page.main.all("a") if one.text == "102"]
        assert dead == ["/jobs?function=resize&state=failed"]
        assert "mainspring worker app.py" in page.main.text
        drawn = page.main.one("svg", class_="spark")
        assert drawn.attributes["aria-label"] == "134 submitted and 3 not succeeded in the last hour"
        points = [point.split(",") for point in drawn.one("polyline").attributes["points"].split()]
        assert (len(points), points[0], points[-1]) == (60, ["1", "20.0"], ["119", "2.0"])
        assert drawn.one("path").attributes["d"] == "M119 20v1.5", "3 of 99 are no full bar"
        assert [line.attributes["x1"] for line in drawn.all("line", class_="now")] == ["58.3"]

    run(test())


def test_the_overview_has_the_next_fires_the_newest_marks_and_all_that_did_not_succeed() -> None:
    async def test() -> None:
        texts = dict.fromkeys(ScheduleInfo.__struct_fields__, "")
        names: dict[str, Any] = texts | {"function": "f", "state": "active", "parents": [], "waiting": 0}
        due = [
            {**names, "name": f"s{hour}", "next_at": f"2030-01-31T{hour}:00:00Z"} for hour in (18, 13, 17, 14, 16, 15)
        ]
        marks = [{"label": f"web {number}", "at": "2030-01-31T11:30:10Z", "who": "ann"} for number in range(9, 0, -1)]
        kinds = {"failed": 1, "retried": 20, "timed_out": 300, "lost": 4000, "cancelled": 50000, "snoozed": 50000}
        zeros: dict[str, Any] = dict.fromkeys(RecentJobs.__struct_fields__, 0)
        recent = RecentJobs(**(zeros | {"since": "2030-01-31T11:55:00Z", "seconds": 300.0} | kinds))
        answers = {
            "/status": msgspec.structs.replace(_status(), recent=recent),
            "/nodes": {"items": []},
            "/schedules": {"items": [{**names, "name": "finished", "next_at": None}, *due]},
            "/jobs": {"items": []},
            "/marks": {"items": marks},
        }
        page = await browser_of(answers, 0.0).open("/")
        assert [row[0] for row in page.rows()] == ["s13", "s14", "s15", "s16", "s17"]
        assert [f"web {number}" in page.main.text for number in (9, 8, 7, 6)] == [True, True, True, False]
        assert page.main.one("dd", **{"data-live": "not_succeeded"}).text == "4 321"

    run(test())


def test_the_label_of_recent_jobs_does_not_change_within_a_minute() -> None:
    async def test() -> None:
        zeros: dict[str, Any] = dict.fromkeys(RecentJobs.__struct_fields__, 0)
        answers: dict[str, Any] = {"/nodes": {"items": []}, "/schedules": {"items": []}, "/jobs": {"items": []}}
        for seconds in (300.0, 305.4, 359.9):
            recent = RecentJobs(**(zeros | {"since": "2030-01-31T12:00:00Z", "seconds": seconds}))
            status = msgspec.structs.replace(_status(), recent=recent)
            page = await browser_of({**answers, "/status": status, "/marks": {"items": []}}, 0.0).open("/")
            assert "Succeeded in about 5 min" in [one.text for one in page.main.all("dt")], seconds

    run(test())


def _dead(function: str, ended: str) -> dict[str, Any]:
    return dict.fromkeys(JobInfo.__struct_fields__) | {
        "handle": "H:n:1",
        "function": function,
        "unique": "",
        "state": "failed",
        "priority": "normal",
        "attempt": 1,
        "ended_at": ended,
    }


async def _with(failing: list[FailingFunction], dead: list[dict[str, Any]], **more: Any) -> str:
    """Return the text of an overview with these failing functions and dead letters."""
    status = msgspec.structs.replace(_status(), failing=Failures("2030-01-31T11:00:00Z", failing))
    nothing: dict[str, Any] = {"items": []}
    answers = {
        "/status": status,
        "/default/nodes": {"items": [_node("a")]},
        "/schedules": nothing,
        "/marks": nothing,
        "/jobs": {"items": dead, **more},
    }
    now = dt.datetime(2030, 1, 31, 12, tzinfo=dt.UTC).timestamp()
    return (await browser_of(answers, now).open("/")).main.text


def test_nothing_is_well_while_there_is_a_dead_letter() -> None:
    """The counts of failing functions lag, and the list of dead letters does not."""

    async def test() -> None:
        new, old = _dead("resize", "2030-01-31T11:59:59Z"), _dead("mail", "2030-01-30T00:00:00Z")
        text = await _with([], [new])
        assert "well" not in text
        assert "No attempt has failed" not in text
        assert "1 dead letter, the newest of resize." in text
        assert "resize failed just now" in text
        counted = FailingFunction("resize", 1, "2030-01-31T11:59:59Z", "ValueError", "no", "H:n:1")
        assert "just now" not in await _with([counted], [new])
        text = await _with([], [old, old], next="x")
        assert "More than 2 dead letters, the newest of mail." in text
        assert "The dead letters below are older, or are runs of workflows." in text
        text = await _with([], [_dead("album", "2030-01-31T11:59:40Z")])
        assert "just now" not in text, "a run is not counted later either"
        assert "No attempt has failed" in text
        text = await _with([], [])
        assert ("well" in text, "No attempt has failed" in text) == (True, True)

    run(test())


def test_another_namespace_has_an_overview_of_its_own() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.submit("resize")
            page = await browser.open("/?namespace=team")
            assert "trouble" not in page.main.text
            links = {one.attributes["href"] for one in page.root.all("a") if one.attributes["href"].startswith("/jobs")}
            assert links
            assert all("namespace=team" in link for link in links)

    run(test())


def test_both_pages_show_failing_functions() -> None:
    failing = FailingFunction("resize", 3, "2030-01-31T12:00:00Z", "ValueError", "no <picture>", "H:n1:7")
    status = NamespaceStatus(
        "default", JobCounts(0, 0, 0, 0), 1, None, None, Failures("2030-01-31T11:00:00Z", [failing])
    )

    async def test() -> None:
        async with whole_node() as (client, built):
            inner = client.app

            async def api(scope: Scope, receive: Receive, send: Send) -> None:
                if not scope["path"].endswith("/status"):
                    await inner(scope, receive, send)
                    return
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": msgspec.json.encode(status)})

            client.app = Dashboard(api, now=built.clock.wall, version="9.9")  # type: ignore[assignment]
            browser = Browser(client, "")
            await browser.submit("other")
            for path in ("/", "/functions"):
                page = await browser.open(path)
                assert page.rows()[0][:2] == ["resize", "3"]
                assert page.rows()[0][3] == "ValueError no <picture>"

    run(test())
