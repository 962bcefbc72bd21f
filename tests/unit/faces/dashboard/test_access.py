"""The pages of workers, of the audit, and of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.unit.api.a_node import run

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api.access import ActInfo, GrantSpec, Identity
from mainspring.api.nodes import NodeInfo, WorkerDetails, WorkerPace
from mainspring.faces.dashboard.pages import PAGES

from .a_browser import browser_of, browsing
from .a_matrix import matrix

if TYPE_CHECKING:
    from .a_browser import Shown

JSON = "application/json"


def test_no_workers_is_a_page_that_says_how_to_start_one() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            assert "mainspring worker app.py" in (await browser.open("/workers")).main.text
            page = await browser.open("/workers/1-1")
            assert page.status == 404

    run(test())


def test_a_worker_of_another_node_says_where_its_jobs_are_and_how_old_its_numbers_are() -> None:
    async def test() -> None:
        now = 1_900_000_000.0
        worker = WorkerDetails(
            "2-1",
            "gpu",
            "b",
            2,
            "extension",
            "silent",
            4,
            1,
            None,
            None,
            stops=True,
            silent_since="2030-03-17T17:46:00Z",
            functions=None,
            jobs=None,
            decisions=None,
            pace=WorkerPace(9500, 10000, 1000.0, 950.5, 1.5, 3, 20, 0, full=True),
        )
        node: dict[str, Any] = dict.fromkeys(NodeInfo.__struct_fields__) | dict.fromkeys(("jobs", "weight", "beats"), 0)
        node |= {"name": "b", "term": 2, "state": "live", "version": "1", "functions": [], "recoveries": []}
        answers = {
            "/workers": {"items": [worker]},
            "/workers/2-1": worker,
            "/nodes": {"items": [NodeInfo(**{**node, "address": "b:4730", "lease": 9.0, "lease_left": 7.0})]},
        }
        browser = browser_of(answers, now)
        page = await browser.open("/workers/2-1?namespace=team")
        assert "mainspring workers show 2-1 --server b:4730 --namespace team" in page.main.text
        assert "Heartbeat of the node 2.0 s before this page" in page.main.text
        assert page.main.all("dl")[0].one("a").attributes["href"] == "/nodes?namespace=team"
        pace = page.main.text.replace("\N{NARROW NO-BREAK SPACE}", " ")
        assert "Heartbeats Items 9 500 of 10 000: full In a second 950.5 of 1 000.0 Late by 1.5 s" in pace
        assert "Refused jobs 3 Throttled 20 Failed 0" in pace

    run(test())


def test_an_empty_audit_is_a_page() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            assert "Nobody has changed anything yet" in (await browser.open("/audit")).main.text
            assert "matches" in (await browser.open("/audit?who=nobody")).main.text

    run(test())


def test_the_audit_shows_acts_with_their_objects_and_filters_them() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            handle = await browser.submit("f")
            await browser.call("POST", f"jobs/{handle}/cancel", {"reason": "<b>not needed</b>"})
            await browser.call("POST", "functions/f/pause", {})
            page = await browser.open("/audit")
            assert [row[1:4] for row in page.rows()] == [
                ["admin from 127.0.0.1", "functions.pause", "f"],
                ["admin from 127.0.0.1", "jobs.cancel", handle],
            ]
            assert page.rows()[1][5] == "<b>not needed</b>"
            page = await browser.open("/audit?what=jobs.cancel")
            assert len(page.rows()) == 1
            page = await browser.act(page, "marks_add", {"label": "web 4.2"})
            assert "line in all drawings" in page.main.text
            assert (await browser.open("/audit", token="operator")).status == 403

    run(test())


def _act(number: int, what: str, name: str, namespace: str = "default") -> ActInfo:
    return ActInfo(number, "2030-01-31T12:00:00Z", what, "ann", name, namespace, None, None, None, None, None, "", None)


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ({"rate": None, "paused": False, "key": 1}, {"rate": None, "paused": True, "key": 1}, ["paused no → yes"]),
        (None, {"name": "ci", "grants": [], "expires_at": None}, ["name ci"]),
        (None, {"name": "pay", "namespace": "default", "every": 5400.0}, ["every 1 h 30 min"]),
        ({"state": "dead"}, None, ["state dead"]),
        (
            {"retry": None, "timeout": 90.0, "concurrency_per_key": 1000.0, "tags": ["a", "b"]},
            {"retry": {"max_attempts": 4, "initial": 1.0, "jitter": 0.1}, "timeout": 3600, "tags": []},
            [
                "retry none → max attempts 4, initial 1.0 s, jitter 0.1",
                "timeout 1 min 30 s → 1 h",
                "concurrency per key 1 000 → none",
                "tags a; b → none",
            ],
        ),
        ("pending", "cancelled", ["pending → cancelled"]),
        ({"a": 1}, {"a": 1}, []),
        (None, None, []),
        (None, {"text": "<b>" + "x" * 400}, ["text <b>" + "x" * 297 + "…"]),
    ],
)
def test_the_audit_shows_what_an_act_has_changed(before: Any, after: Any, shown: list[str]) -> None:
    async def test() -> None:
        act = msgspec.structs.replace(_act(1, "functions.pause", "pay"), before=before, after=after)
        answers = {"/whoami": Identity("a", None, [GrantSpec("admin")]), "/audit": {"items": [act]}}
        page = await browser_of(answers, 1_900_000_000.0).open("/audit")
        (cell,) = page.main.all("td", **{"data-label": "Changes"})
        assert [" ".join(one.text.split()) for one in cell.all("div")] == shown
        assert shown or cell.text == "\N{EN DASH}"

    run(test())


def test_the_many_values_of_a_new_or_removed_object_are_folded() -> None:
    async def test() -> None:
        values = {"cron": "0 3 * * *", "overlap": "allow", "misfire": "once", "timeout": 90.0}
        added = msgspec.structs.replace(_act(2, "schedules.add", "s"), after=values)
        removed = msgspec.structs.replace(_act(1, "schedules.remove", "s"), before=values, address="10.0.0.7")
        answers = {"/whoami": Identity("a", None, [GrantSpec("admin")]), "/audit": {"items": [added, removed]}}
        page = await browser_of(answers, 1_900_000_000.0).open("/audit")
        folded = [one.one("details") for one in page.main.all("td", **{"data-label": "Changes"})]
        assert [one.one("summary").text for one in folded] == ["made with 4 values", "removed with 4 values"]
        assert [one.text for one in folded[1].all("div")][-1] == "timeout 1 min 30 s"
        assert [row[1] for row in page.rows()] == ["ann", "ann from 10.0.0.7"]

    run(test())


def test_the_objects_of_acts_lead_to_their_pages() -> None:
    async def test() -> None:
        acts = {
            ("jobs.cancel", "H:n:1"): "/jobs/H%3An%3A1",
            ("jobs.submit", "pay"): "/functions/pay",
            ("workflows.terminate", "H:n:1@1"): "/workflows/H%3An%3A1%401",
            ("workflows.cancel", "H:n:1"): "/workflows/H%3An%3A1",
            ("workflows.remove", "order@2"): "/audit?object=order%402",
            ("functions.pause", "pay"): "/functions/pay",
            ("schedules.pause", "nightly"): "/schedules/nightly",
            ("schedules.declare", "app"): "/audit?object=app",
            ("workers.drain", "1-1"): "/workers/1-1",
            ("operations.abort", "op-7"): "/operations/op-7",
            ("nodes.drain", "n1"): "/nodes",
            ("tokens.create", "abc"): "/settings/tokens",
            ("marks.add", "web 4.2"): "/audit?object=web+4.2",
        }
        answers = {
            "/whoami": Identity("a", None, [GrantSpec("admin")]),
            "/audit": {"items": [_act(number, *act) for number, act in enumerate(acts)]},
        }
        page = await browser_of(answers, 1_900_000_000.0).open("/audit")
        cells = page.main.all("td", **{"data-label": "Object"})
        assert {one.text: one.one("a").attributes["href"] for one in cells} == {
            name: address for (_, name), address in acts.items()
        }

    run(test())


def test_administrators_of_all_namespaces_see_the_acts_of_all_and_lead_to_them() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            browser.admit("all", Caller("all", (Grant(Role.ADMIN, "*"),)))
            browser.admit("one", Caller("one", (Grant(Role.ADMIN),)))
            browser.admit("some", Caller("some", (Grant(Role.ADMIN, "*", functions=("pay*",)),)))
            await browser.call("POST", "functions/f/pause", {})
            await browser.send("/actions/functions_pause?namespace=team", {"path.function": "g"}, token="all")
            await browser.send("/settings/tokens", {"name": "t", "role": "viewer", "namespace": "*"}, token="all")
            page = await browser.open("/audit?namespace=team", token="all")
            assert [row[2:4] for row in page.rows()] == [["functions.pause", "g"]]
            assert page.main.all("input", name="everywhere")
            page = await browser.open("/audit?namespace=team&everywhere=true", token="all")
            assert [(row[3], row[4]) for row in page.rows()][-2:] == [("g", "team"), ("f", "default")]
            assert page.main.all("input", name="everywhere", checked="")
            assert page.rows()[0][2] == "tokens.create", "of all namespaces, so of none"
            links = {one.text: one.attributes["href"] for one in page.main.one("tbody").all("a")}
            assert (links["f"], links["g"]) == ("/functions/f", "/functions/g?namespace=team")
            assert links["all"] == "/audit?namespace=team&everywhere=true&who=all"
            assert not (await browser.open("/audit", token="one")).main.all("input", name="everywhere")
            for token in ("one", "some"):
                assert (await browser.open("/audit?everywhere=true", token=token)).status == 403

    run(test())


def test_a_run_shows_the_acts_by_each_of_its_names() -> None:
    async def test() -> None:
        async with matrix("order") as node:
            browser = node.browser
            path, _ = await node.object_of("workflows_cancel", "order")
            page = await browser.open(path)
            assert "Nobody has cancelled" in page.main.text
            page = await browser.act(page, "workflows_cancel", {"reason": "by its key"})
            await browser.call("POST", f"{path[1:]}/terminate", {})
            page = await browser.open(path)
            ended, cancelled = [one.text for one in page.main.one("ul", class_="acts").all("li")]
            assert ended.endswith(f"workflows.terminate {path.rpartition('/')[2]}")
            assert cancelled.endswith("workflows.cancel · by its key")
            links = [one.attributes["href"] for one in page.main.all("a") if one.text.startswith("those by")]
            assert f"/audit?object={path.rpartition('/')[2]}" in links

    run(test())


def test_the_pages_of_functions_and_schedules_show_who_did_what_and_lead_to_all_of_it() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.call("POST", "schedules", {"name": "s", "function": "f", "cron": "0 0 1 1 *"})
            await browser.submit("f")
            assert "Nobody has paused or limited this function." in (await browser.open("/functions/f")).main.text
            for path, name in (("/functions/f", "functions"), ("/schedules/s", "schedules")):
                await browser.act(await browser.open(path), f"{name}_pause")
                page = await browser.act(await browser.open(path), f"{name}_resume")
                acts = [one.text.partition("admin · ")[2] for one in page.main.one("ul", class_="acts").all("li")]
                assert acts[:2] == [f"{name}.resume", f"{name}.pause"]
                (link,) = [
                    one.attributes["href"] for one in page.main.all("a") if one.text == "Values before and after"
                ]
                assert [row[2] for row in (await browser.open(link)).rows()] == acts
                assert not (await browser.open(path, token="operator")).main.all("h2", id="acts")

    run(test())


def test_a_token_is_created_shown_once_rotated_and_revoked() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            assert "no tokens" in (await browser.open("/settings/tokens")).main.text
            fields = {"name": "ci", "role": "developer", "functions": "pay* mail", "payloads": "1", "namespace": ""}
            answer = await browser.send("/settings/tokens", fields)
            secret = answer.body.decode().partition('<pre tabindex="0">')[2].partition("<")[0]
            assert secret.startswith("ms_")
            page = await browser.open("/settings/tokens")
            assert secret not in page.answer.body.decode()
            assert page.rows()[0][1] == "developer in default for pay*, mail, with payloads"
            token = page.main.all("input", name="rotate")[0].attributes["value"]
            answer = await browser.send("/settings/tokens", {"rotate": token})
            assert b"ms_" in answer.body
            assert secret.encode() not in answer.body
            page = await browser.act(await browser.open("/settings/tokens"), "tokens_revoke")
            assert page.main.all("tbody") == []

    run(test())


def test_nobody_grants_more_than_he_has() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for role in ("viewer", "developer"):
                answer = await browser.send("/settings/tokens", {"name": "x", "role": "admin"}, token=role)
                assert answer.status == 403
            wrong = await browser.send("/settings/tokens", {"role": "admin"})
            assert (wrong.status, b"Name is missing" in wrong.body) == (422, True)

    run(test())


def links(page: Shown) -> dict[str, str]:
    return {one.text: one.attributes["href"] for one in page.main.one("ul").all("a")}


def test_a_namespace_is_chosen_from_those_with_functions() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            await browser.raw("POST", "/api/v1/namespaces/shop/jobs", b'{"function":"pay"}', {"content-type": JSON})
            page = await browser.open("/nodes?namespace=team")
            (chooser,) = (one for one in page.root.all("a") if one.text == "choose another one")
            page = await browser.open(chooser.attributes["href"])
            assert links(page) == {"default": "/", "shop": "/?namespace=shop", "team": "/?namespace=team"}
            (current,) = page.main.all("a", **{"aria-current": "true"})
            assert current.text == "team"
            form = page.main.one("form", method="get")
            assert (form.attributes["action"], [one.attributes["name"] for one in form.all("input")]) == (
                "/",
                ["namespace"],
            )
            shop = await browser.open("/?namespace=shop")
            assert "1 job waits" in shop.main.text

    run(test())


def test_a_viewer_without_rights_in_the_default_namespace_is_led_to_the_first_of_the_others() -> None:
    async def test() -> None:
        async with browsing(prefix="/tools") as (browser, _):
            grants = (Grant(Role.VIEWER, "shop", ("pay*",)), Grant(Role.VIEWER, "team"))
            browser.admit("shop", Caller("shop", grants))
            page = await browser.open("/", token="shop")
            assert (page.status, page.answer.headers["location"]) == (303, "/tools/?namespace=shop")
            assert (await browser.open("/?namespace=shop", token="shop")).status == 200
            assert (await browser.open("/?namespace=default", token="shop")).status == 403
            page = await browser.open("/settings/namespaces?namespace=shop", token="shop")
            assert links(page) == {"shop": "/tools/?namespace=shop", "team": "/tools/?namespace=team"}
            assert page.main.all("form") == []
            assert (await browser.open("/", token="viewer")).status == 200

    run(test())


def test_the_menu_has_the_pages_that_its_viewer_may_see() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            for token, hidden in (("admin", set()), ("viewer", {"Tokens", "Audit"})):
                page = await browser.open("/nodes", token=token)
                shown = {one.text for one in page.root.one("nav", **{"aria-label": "Pages"}).all("a")}
                entries = [one for one in PAGES if one.menu]
                assert shown == {one.menu for one in entries} - hidden
                for one in entries:
                    allowed = one.menu in shown
                    assert (await browser.open(one.path, token=token)).status == (200 if allowed else 403), one.path

    run(test())
