"""The page of nodes and the drawing of the fleet."""

from __future__ import annotations

import datetime as dt
from typing import Any

from tests.unit.api.a_node import run

from mainspring.access.caller import Role
from mainspring.api.access import GrantSpec, Identity
from mainspring.api.namespaces import NamespaceNode
from mainspring.api.nodes import NodeInfo, RecoveryInfo
from mainspring.faces.dashboard.pages.fleet import (
    LEASE_WIDTH,
    MOST_NODES,
    ROW,
    Recovery,
    different_versions,
    fleet,
    shown_node,
)

from .a_browser import browser_of, browsing

ADMIN = Identity("a", None, [GrantSpec("admin", "*")])


def node(name: str, term: int = 1, **given: Any) -> NodeInfo:
    values: dict[str, Any] = {"state": "live", "slots": 4, "prefetch": 8, "jobs": 0, "lease_left": 15.0} | given
    full: dict[str, Any] = dict.fromkeys(NodeInfo.__struct_fields__) | {
        "weight": 1,
        "functions": [],
        "recoveries": [],
        "beats": 1,
        "lease": 15.0,
    }
    return NodeInfo(**(full | {"name": name, "term": term, "version": "1.0"} | values))


def in_namespace(name: str, **given: Any) -> NamespaceNode:
    values: dict[str, Any] = dict.fromkeys(NamespaceNode.__struct_fields__) | {
        "name": name,
        "term": 1,
        "state": "live",
        "version": "1.0",
    }
    return NamespaceNode(**(values | {"beats": 1, "lease": 15.0, "workers": 1, "running": 0, "functions": []} | given))


def test_slots_are_cells_and_leases_are_bars() -> None:
    drawn = fleet([shown_node(node("b", jobs=3)), shown_node(node("a", state="dead", lease_left=0.0, slots=2))])
    assert [line.name for line in drawn.lines] == ["a", "b"]
    assert [[cell.is_busy for cell in line.cells] for line in drawn.lines] == [[False] * 2, [True] * 3 + [False]]
    assert [line.lease for line in drawn.lines] == [0, LEASE_WIDTH]
    assert (drawn.per_cell, drawn.jobs, drawn.all_slots) == (1, 3, "6")


def test_slots_without_a_limit_are_part_of_the_sum() -> None:
    for slots, text in (((4, None), "4 and more"), ((None, None), "no limit"), ((0, 15), "15")):
        nodes = [shown_node(node(f"n{number}", slots=one)) for number, one in enumerate(slots)]
        assert fleet(nodes).all_slots == text


def test_large_fleets_have_few_shapes() -> None:
    drawn = fleet([shown_node(node(f"n{number}", slots=10_000, jobs=1)) for number in range(200)])
    assert (len(drawn.lines), drawn.left_out) == (MOST_NODES, 200 - MOST_NODES)
    assert sum(len(line.cells) + 5 for line in drawn.lines) + 4 <= 500
    assert all(line.cells[0].is_busy and not line.cells[1].is_busy for line in drawn.lines)


def test_a_node_without_slots_is_drawn() -> None:
    drawn = fleet([shown_node(node("a", slots=None, jobs=2, lease_left=None)), shown_node(node("b", slots=0))])
    assert [line.load for line in drawn.lines] == ["2", "0 of 0"]
    assert not drawn.lines[0].has_lease


def test_a_dead_node_is_removed_by_its_term() -> None:
    async def test() -> None:
        nodes = {"items": [node("b", 7), node("b", 3, state="dead", lease_left=0.0)]}
        answers: dict[str, Any] = {"/whoami": ADMIN, "/namespaces/default/nodes": {"items": []}, "/api/v1/nodes": nodes}
        page = await browser_of(answers, 0.0).open("/nodes")
        assert [row[1] for row in page.rows()] == ["✖ dead", "✔ live"], "those that need somebody come first"
        totals = [cell.text for cell in page.main.one("tfoot").all("td")][1:3]
        assert f"{totals[0]} jobs, slots: {totals[1]}." in page.main.one("desc").text
        assert [row[6] for row in page.rows()] == ["it has ended", "15 s of 15 s last heartbeat now"]
        form = page.main.one("form", action="/actions/nodes_remove")
        assert form.one("input", name="path.node").attributes["value"] == "3"
        assert "mainspring nodes remove 3" in form.text

    run(test())


def test_who_may_see_one_namespace_sees_its_numbers() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            browser.permit("team", Role.ADMIN, "team")
            page = await browser.open("/nodes?namespace=team", token="team")
            assert "with the jobs and slots of the namespace team" in page.main.one("caption").text
            assert page.main.all("form") == []
            assert len(page.rows()) == 1
            assert (await browser.open("/nodes", token="team")).status == 403
            assert "namespace" not in (await browser.open("/nodes")).main.one("caption").text
        answers: dict[str, Any] = {
            "/namespaces/default/nodes": {"items": [in_namespace("a", slots=2, running=1, lease_left=3.0)]},
            "/api/v1/nodes": {"items": [node("a", slots=None, prefetch=None, jobs=9)]},
        }
        page = await browser_of(answers, 0.0).open("/nodes")
        assert page.rows()[0][2:5] == ["1", "2", "3.0 s of 15 s last heartbeat 12 s ago"]

    run(test())


def test_the_only_node_of_a_store_has_no_button_that_would_be_refused() -> None:
    async def test() -> None:
        async with browsing() as (browser, _):
            page = await browser.open("/nodes")
            assert page.rows()[0][1].startswith("✔ live started ")
            assert page.rows()[0][5] == "default, weight 1"
            assert page.main.all("form") == []

    run(test())


def test_the_page_of_a_large_fleet_explains_its_drawing_and_has_all_nodes_in_its_table() -> None:
    async def test() -> None:
        for number, slots, notes in ((2, 4, False), (MOST_NODES + 7, 10_000, True)):
            nodes = [node(f"n{one:03}", slots=slots) for one in range(number)]
            answers: dict[str, Any] = {
                "/namespaces/default/nodes": {"items": [in_namespace("a")]},
                "/api/v1/nodes": {"items": nodes},
                "/whoami": ADMIN,
            }
            page = await browser_of(answers, 0.0).open("/nodes")
            assert ("7 more nodes are in the table alone." in page.main.text) == notes
            assert ("A cell is" in [one.text[:9] for one in page.main.all("p")]) == notes
            assert len(page.rows()) == number
            heads = [one.text for one in page.main.one("thead").all("th")]
            assert heads[4:6] == ["Prefetch", "Strategy"]

    run(test())


def test_a_row_has_all_that_a_node_reports() -> None:
    async def test() -> None:
        shown = node(
            "a",
            7,
            address="10.0.0.5:4730",
            jobs=1,
            strategy="weight",
            weight=3,
            lease_left=11.0,
            started_at="2030-01-31T12:00:00Z",
        )
        older = node("b", 8, prefetch=2)
        answers: dict[str, Any] = {
            "/whoami": ADMIN,
            "/namespaces/default/nodes": {"items": []},
            "/api/v1/nodes": {"items": [shown, older]},
        }
        noon = dt.datetime(2030, 1, 31, 12, 5, tzinfo=dt.UTC).timestamp()
        page = await browser_of(answers, noon).open("/nodes")
        first, second = page.rows()
        assert first[0] == "a term 7 · 10.0.0.5:4730"
        assert first[1:7] == [
            "✔ live started 5 min ago",
            "1",
            "4",
            "8",
            "weight, weight 3",
            "11 s of 15 s last heartbeat 4.0 s ago",
        ]
        assert (second[1], second[5]) == ("✔ live", "unknown, weight 1")
        assert [cell.text for cell in page.main.one("tfoot").all("td")][1:4] == ["1", "8", "10"]

    run(test())


def test_nodes_with_other_versions_are_named() -> None:
    async def test() -> None:
        nodes = [node(name, version=version) for name, version in zip("edcba", ["1.1", *["1.0"] * 4], strict=True)]
        sentence = "Nodes have different versions: 1.0 (a, b, c and 1 more), 1.1 (e)."
        assert different_versions([shown_node(one) for one in nodes]) == sentence
        answers: dict[str, Any] = {"/namespaces/default/nodes": {"items": []}, "/api/v1/nodes": {"items": nodes}}
        page = await browser_of(answers, 0.0).open("/nodes")
        assert page.main.one("p", class_="problem").text == f"✖ trouble {sentence}"
        answers["/api/v1/nodes"] = {"items": nodes[1:]}
        assert (await browser_of(answers, 0.0).open("/nodes")).main.all("p", class_="problem") == []

    run(test())


def test_arrows_lead_from_ended_nodes_to_all_nodes() -> None:
    async def test() -> None:
        first = RecoveryInfo([3], ["<n3>"], 12, "2030-01-31T14:02:11Z")
        second = RecoveryInfo([4, 5], ["n4", "n5"], 1, "2030-01-31T14:02:11.5Z")
        nodes = {"items": [node("n1", recoveries=[first]), node("n2", recoveries=[second])]}
        answers: dict[str, Any] = {"/whoami": ADMIN, "/namespaces/default/nodes": {"items": []}, "/api/v1/nodes": nodes}
        page = await browser_of(answers, 0.0).open("/nodes")
        assert page.rows(1) == [
            ["n4 term 4, n5 term 5", "1", "2030-01-31 14:02:11 UTC", "n2"],
            ["<n3> term 3", "12", "2030-01-31 14:02:11 UTC", "n1"],
        ]
        drawing = page.main.one("svg", class_="drawing")
        assert len(drawing.all("path", class_="edge")) == 2
        texts = [one.text for one in drawing.all("text")]
        assert texts[-5:] == [
            "given back to all nodes",
            "n4 term 4, n5 term 5",
            "1 job, 2030-01-31 14:02:11 UTC, by n2",
            "<n3> term 3",
            "12 jobs, 2030-01-31 14:02:11 UTC, by n1",
        ]
        assert "Arrows lead from ended nodes" in drawing.one("desc").text

    run(test())


def test_few_arrows_are_drawn_below_the_nodes() -> None:
    many = [Recovery(f"n{number}", 1, "2030-01-31T14:02:11Z", "n") for number in range(20)]
    drawn = fleet([shown_node(node(f"n{number}")) for number in range(MOST_NODES)], many)
    assert [arrow.recovery.ended for arrow in drawn.arrows] == ["n0", "n1", "n2", "n3"]
    assert drawn.lines[-1].y + ROW < drawn.arrows[0].y
    assert drawn.arrows[-1].y + ROW < drawn.height
    assert sum(len(line.cells) + 5 for line in drawn.lines) + 3 * len(drawn.arrows) + 5 <= 500
