"""Calls of `mainspring functions`, the keys of SUBMIT, and the limits of REGISTER."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mainspring.api.functions import ListFunctions
from mainspring.api.handlers import functions
from mainspring.api.handlers.functions import DeadLetters, FunctionCalls
from mainspring.api.handlers.pages import cursor_of
from mainspring.features import Feature
from mainspring.jobs.function_index import STARTUP_GRACE
from mainspring.jobs.model import Options
from mainspring.resources.rules import Limits, Rate
from mainspring.wire.gearman_protocol import Type

from .a_face import F, Node, Peer

NO_LIMITS = {"concurrency": None, "concurrency_per_key": None, "rate": None, "rate_per_key": None, "source": None}


@pytest.fixture
def tool(node: Node) -> Peer:
    node.life.api.add(FunctionCalls(node.service, DeadLetters(node.service)).handlers)
    return node.connect(extended=True)


def test_a_function_without_limits_is_shown(tool: Peer) -> None:
    assert tool.call("functions.list") == {"items": [], "next": None, "searched_to": None}
    assert tool.call("functions.show", function="f") == "not_found"
    tool.background()
    shown_revision = tool.call("functions.show", function="f")["revision"]
    shown = {
        "function": "f",
        "paused": False,
        **NO_LIMITS,
        "waiting": 1,
        "running": 0,
        "workers": 0,
        "registered": None,
        "pause_reason": None,
        "paused_at": None,
        "paused_until": None,
        "revision": shown_revision,
        "dead_letters": 0,
        "running_at_all_nodes": 0,
        "paused_by": None,
        "start_within": None,
        "deadline": None,
        "uses": None,
        "uses_timeout": None,
        "waiting_by_priority": {"high": 0, "normal": 1, "low": 0},
    }
    assert tool.call("functions.show", function="f") == shown
    assert tool.call("functions.list") == {"items": [shown], "next": None, "searched_to": None}


@pytest.mark.parametrize("limit", [1, 3, 4, 7, 100])
def test_functions_are_listed_page_by_page(tool: Peer, node: Node, limit: int) -> None:
    node.worker(b"served", b"served too")
    node.service.dispatch.complete = False
    for name in (b"row", b"paused row", b"served"):
        tool.background(b"", name)
    for paused in ("paused", "paused row", "served too"):
        assert tool.call("functions.pause", function=paused)["paused"]
    node.service.registered.elsewhere = lambda: frozenset([b"elsewhere", b"served"])
    pages: list[Any] = []
    while not pages or pages[-1]["next"] is not None:
        after = {"cursor": pages[-1]["next"]} if pages else {}
        pages.append(tool.call("functions.list", limit=limit, **after))
        assert len(pages[-1]["items"]) <= limit
        assert len(pages) <= 10
    shown = {one["function"]: one["waiting"] for page in pages for one in page["items"]}
    assert shown == {"served": 1, "served too": 0, "row": 1, "paused row": 1, "paused": 0, "elsewhere": 0}
    assert sum(len(page["items"]) for page in pages) == len(shown), "each once"
    assert tool.call("functions.show", function="row")["waiting"] == 1
    assert tool.call("functions.show", function="unknown") == "not_found"


@pytest.mark.parametrize("after", ["", "x1", "m", "mx", "s1", "s1.zz", "nz", "s.", "m1."])
def test_a_place_that_no_answer_contained_is_refused(tool: Peer, after: str) -> None:
    cursor = cursor_of(ListFunctions(), after)
    assert tool.call("functions.list", cursor=cursor) in ("usage", {"items": [], "next": None, "searched_to": None})


@pytest.mark.parametrize("row", [b"x", b"-1", b"9" * 30, b"99999999999", b"\0"])
def test_a_made_up_place_of_a_store_lists_nothing(tool: Peer, node: Node, row: bytes) -> None:
    node.service.dispatch.complete = False
    assert isinstance(tool.call("functions.list", cursor=cursor_of(ListFunctions(), f"s0.{row.hex()}")), dict)


def test_new_functions_above_the_limit_are_refused(tool: Peer, node: Node) -> None:
    node.service.dispatch.most = 1
    tool.background(b"", b"f")
    assert tool.call("functions.pause", function="new") == "usage"
    assert tool.call("functions.pause", function="f")["paused"]


def test_a_page_has_a_limit(tool: Peer) -> None:
    assert tool.call("functions.list", limit=0) == tool.call("functions.list", limit=1001) == "usage"


def test_registered_functions_are_found(tool: Peer, node: Node) -> None:
    assert tool.call("functions.registered", function="g")["registered"] is None, "workers may still connect"
    node.wait(STARTUP_GRACE)
    asked = tool.call("functions.registered", function="g")
    assert asked == {"registered": False, "shared": False, "functions": []}
    assert tool.call("functions.list") == {"items": [], "next": None, "searched_to": None}, (
        "a query creates no function"
    )
    node.worker(b"f")
    assert tool.call("functions.registered", function="g") == asked | {"functions": ["f"]}
    assert tool.call("functions.registered", function="f") == asked | {"registered": True}
    assert tool.call("functions.show", function="f")["registered"] is True


def test_workers_of_other_nodes_count(tool: Peer, node: Node) -> None:
    node.wait(STARTUP_GRACE)
    node.service.registered.elsewhere = lambda: frozenset([b"g"])
    assert tool.call("functions.registered", function="g")["registered"] is True
    assert tool.call("functions.registered", function="f")["functions"] == ["g"]
    assert tool.call("functions.show", function="g")["workers"] == 0
    assert [shown["function"] for shown in tool.call("functions.list")["items"]] == ["g"]
    node.service.registered.elsewhere = lambda: None
    node.worker(b"h")
    assert tool.call("functions.registered", function="g")["registered"] is None, (
        "it is unknown while the fleet cannot be read"
    )
    assert tool.call("functions.registered", function="h")["registered"] is True
    assert tool.call("functions.show", function="g") == "not_found"


def test_the_names_in_an_answer_have_a_limit(tool: Peer, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "NAMES_LIMIT", 2)
    node.worker(b"a", b"c", b"b")
    assert tool.call("functions.registered", function="x")["functions"] == ["a", "b"]


def test_limits_are_set_one_by_one_and_removed(tool: Peer) -> None:
    rate = {"number": 100, "per": 60.0, "burst": 20}
    assert tool.call("functions.limit", function="f", concurrency=5)["concurrency"] == 5
    info = tool.call("functions.limit", function="f", rate=rate, concurrency_per_key=1)
    assert (info["concurrency"], info["concurrency_per_key"], info["rate"]) == (5, 1, rate)
    assert info["source"] == "command"
    info = tool.call("functions.limit", function="f", concurrency=None, rate={"number": 7})
    assert (info["concurrency"], info["rate"]) == (None, {"number": 7, "per": 1.0, "burst": 7})
    info = tool.call("functions.limit", function="f", unlimited=True)
    assert {name: info[name] for name in NO_LIMITS} == NO_LIMITS | {"source": "command"}
    info = tool.call("functions.limit", function="f", declared=True)
    assert {name: info[name] for name in NO_LIMITS} == NO_LIMITS


def test_functions_are_paused_and_resumed(tool: Peer, node: Node) -> None:
    assert tool.call("functions.pause", function="f")["paused"] is True
    assert node.service.functions.limits_of(F).paused
    assert tool.call("functions.resume", function="f")["paused"] is False


@pytest.mark.parametrize(
    "params",
    [
        {"function": "f"},
        {"function": "f", "unlimited": True, "declared": True},
        {"function": "f", "unlimited": True, "concurrency": 1},
        {"function": "f", "concurrency": 0},
        {"function": "f", "concurrency": "many"},
        {"function": "f", "rate": {"number": 1, "per": -1}},
        {"function": "f", "rate": {"number": 1, "per": 1e300}},
        {"function": "f", "rate": {"per": 1}},
        {"function": "", "concurrency": 1},
    ],
)
def test_invalid_limits_are_refused(tool: Peer, params: dict[str, Any]) -> None:
    assert tool.call("functions.limit", **params) == "usage"


def test_a_failed_store_is_unavailable(tool: Peer, node: Node) -> None:
    tool.request(Type.CALL, b"1", b"functions.pause", b'{"function": "f"}')
    node.fail()
    ((name, args),) = tool.received()
    assert (name, args[1]) == ("FAULT", "unavailable")
    assert not node.service.functions.limits_of(F).paused


# ---- SUBMIT and REGISTER ----


def test_a_job_has_the_key_of_its_submission(node: Node) -> None:
    client = node.connect(extended=True)
    for options in ({"concurrency_key": "kü"}, {"concurrency_key": "", "timeout": 5}, {}):
        client.request(Type.SUBMIT, F, b"", json.dumps(options).encode() if options else b"", b"")
    node.commit()
    jobs = [node.service.handles.parse(args[0].encode()) for _, args in client.received()]
    stored = [node.life.store.find(job_id) for job_id in jobs if job_id is not None]
    assert [job.key for job in stored if job is not None] == ["kü".encode(), b"", b""]
    assert [job.options for job in stored if job is not None] == [None, Options(timeout=5), None]


def test_a_key_that_is_too_long_is_refused(node: Node) -> None:
    name, args = node.connect(extended=True).ask(
        Type.SUBMIT, F, b"", json.dumps({"concurrency_key": "x" * 256}).encode(), b""
    )
    assert (name, args[0]) == ("ERROR", "INVALID_ARGUMENTS")
    assert "255 bytes" in args[1]


def test_a_worker_declares_limits(node: Node) -> None:
    worker = node.connect(extended=True)
    limits = {"concurrency": 2, "rate_per_key": {"number": 10, "per": 60}}
    worker.request(Type.REGISTER, F, json.dumps({"limits": limits}).encode())
    node.commit()
    assert node.service.functions.limits(F) == Limits(2, rate_per_key=Rate(10, 60_000_000, 10))


def test_a_worker_with_invalid_limits_is_refused(node: Node) -> None:
    name, args = node.connect(extended=True).ask(Type.REGISTER, F, b'{"limits": {"concurrency": 0}}')
    assert (name, args[0]) == ("ERROR", "INVALID_ARGUMENTS")
    assert node.service.functions.limits_of(F).version == 0


def test_a_store_without_limits_refuses_them_by_name(node: Node, tool: Peer) -> None:
    node.life.api.lacks = node.service.lacks = frozenset({Feature.LIMITS})
    assert tool.call("functions.limit", function="f", concurrency=5) == "usage"
    assert tool.call("functions.pause", function="f") == "usage"
    assert tool.call("functions.list") == {"items": [], "next": None, "searched_to": None}
    client = node.connect(extended=True)
    name, args = client.ask(Type.SUBMIT, F, b"", json.dumps({"concurrency_key": "k"}).encode(), b"")
    assert (name, args[0]) == ("ERROR", "UNSUPPORTED")
    assert args[1].startswith("concurrency_key was given, and this node's store is on ZooKeeper, which keeps no limits")
    worker = node.connect(extended=True)
    name, args = worker.ask(Type.REGISTER, F, b'{"limits": {"concurrency": 1, "rate": {"number": 1}}}')
    assert (name, args[0]) == ("ERROR", "UNSUPPORTED")
    assert args[1].startswith("f has concurrency, rate, and this node's store is on ZooKeeper, which keeps no limits")
