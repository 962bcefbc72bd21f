"""The administration protocol on a connection; its commands are parsed in the tests of the wire."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.simulation.wires import Wire
from tests.unit.jobs.a_node import unexpected

from mainspring.faces.gearman.administration import COMMIT_LIMIT
from mainspring.faces.gearman.face import CACHE_SECONDS
from mainspring.jobs.function_index import PAGE_SIZE, Page, Place
from mainspring.wire.gearman_protocol import Type, request

from .a_face import F, G, Node, configure


def test_status_counts_jobs_and_workers(node: Node) -> None:
    client, worker = node.connect(), node.worker(F, G)
    for kind in (Type.SUBMIT_JOB_HIGH_BG, Type.SUBMIT_JOB_BG, Type.SUBMIT_JOB_LOW_BG, Type.SUBMIT_JOB):
        client.request(kind, F, b"", b"")
    node.commit()
    worker.request(Type.CAN_DO, F)
    worker.request(Type.GRAB_JOB)
    assert client.received()
    assert client.text("status") == "f\t4\t1\t2\ng\t0\t0\t1\n.\n"
    assert client.text("prioritystatus") == "f\t0\t2\t1\t2\ng\t0\t0\t0\t1\n.\n"


def test_workers_are_listed_with_their_functions(node: Node) -> None:
    node.connect()
    worker = node.worker(F, G)
    worker.request(Type.SET_CLIENT_ID, b"me\n")
    text = node.connect().text("workers")
    lines = text.split("\n")
    assert len(lines) == 5
    assert lines[1].startswith("-1 localhost me")
    assert lines[1].endswith(": g f")
    assert lines[2].endswith(":")


def test_jobs_in_memory_and_in_the_store_are_shown(node: Node) -> None:
    client = node.connect()
    later = b"%d" % (int(node.clock.wall()) + 60)
    client.send(
        request(Type.SUBMIT_JOB_BG, F, b"u", b"")
        + request(Type.SUBMIT_JOB, G, b"v", b"")
        + request(Type.SUBMIT_JOB_EPOCH, F, b"w", later, b"")
    )
    node.commit()
    handles = [args[0] for _, args in client.received()]
    shown = client.text("show jobs")
    assert {line.split("\t")[0] for line in shown.split("\n")[:-2]} == set(handles)
    unique = client.text("show unique jobs")
    assert [line for line in unique.split("\n") if line] == ["v", "u", "w", "."]


def test_a_failed_store_is_an_error(node: Node) -> None:
    client = node.connect()
    node.life.store.away = True
    assert client.text("show jobs").startswith("ERR STORE")
    assert not client.closed


def test_a_list_cut_off_by_a_failed_store_does_not_look_complete(node: Node) -> None:
    node.worker()
    client = node.connect()
    client.background()
    node.commit()
    node.life.store.away = True
    client.send(b"show jobs\n")
    assert not client.listed().endswith(".\n")
    assert client.closed


# ---- very many functions ----


def rows(node: Node, *functions: bytes) -> None:
    """Store a job of each function, none of which this node serves."""
    node.service.dispatch.complete = False
    for function in functions:
        node.connect().background(b"", function)


def test_functions_with_stored_jobs_are_listed(node: Node) -> None:
    node.connect().background()
    rows(node, b"row", b"served")
    node.worker(b"served")
    assert set(node.service.dispatch.queues) == {F, b"served"}
    assert node.connect().text("status") == "f\t1\t0\t0\nserved\t1\t0\t1\nrow\t1\t0\t0\n.\n"
    assert node.connect().text("prioritystatus") == "f\t0\t1\t0\t0\nserved\t0\t1\t0\t1\nrow\t0\t1\t0\t0\n.\n"


def test_very_many_functions_are_listed_in_pieces(node: Node) -> None:
    names = [b"%d" % number for number in range(2 * PAGE_SIZE + 10)]
    node.worker(*names)
    rows(node, b"row")
    client = node.connect()
    client.send(b"status\n")
    assert client.received() == [], "it is built in steps"
    node.wait(0)
    pieces = [args[0] for _, args in client.received()]
    assert len(pieces) == 5, "three pieces from memory, one from the store, and the end"
    assert [line.split("\t")[0] for line in "".join(pieces).splitlines()] == [*map(bytes.decode, names), "row", "."]


def test_workers_of_many_functions_are_listed_in_pieces(node: Node) -> None:
    for _ in range(3):
        node.worker(*(b"%d" % number for number in range(PAGE_SIZE)))
    lines = node.connect().text("workers").splitlines()
    assert [len(line.split()) for line in lines] == [4, 4 + PAGE_SIZE, 4 + PAGE_SIZE, 4 + PAGE_SIZE, 1]


def test_a_peer_that_does_not_read_gets_no_more_pieces(node: Node) -> None:
    node.worker(*(b"%d" % number for number in range(3 * PAGE_SIZE)))
    client = node.connect()
    client.send(b"status\n")
    client.wire.protocol.pause_writing()
    node.wait(1)
    assert client.received() == []
    client.wire.protocol.resume_writing()
    assert client.listed().endswith(".\n")


def test_a_peer_that_resumes_reading_during_a_query_gets_each_piece_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows(node, b"row")
    asked: list[tuple[Any, ...]] = []
    read = node.life.store.read
    monkeypatch.setattr(node.life.store, "read", lambda *question: asked.append(question))
    client = node.connect()
    client.send(b"status\n")
    node.wait(0)
    (question,) = asked
    client.wire.protocol.pause_writing()
    client.wire.protocol.resume_writing()
    node.wait(0)
    monkeypatch.undo()
    read(*question)
    assert client.listed() == "row\t1\t0\t0\n.\n"


def test_a_disconnected_peer_gets_no_more_pieces(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.worker(*(b"%d" % number for number in range(3 * PAGE_SIZE)))
    client = node.connect()
    client.send(b"status\n")
    client.leave()
    monkeypatch.setattr(node.service.roster, "page", unexpected)
    node.wait(1)


def test_listings_share_recent_pieces_from_the_store(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.worker(*(b"%d" % number for number in range(2 * PAGE_SIZE)))
    rows(node, b"row")
    from_store: list[Place] = []
    page = node.service.roster.page

    async def counted(place: Place) -> Page:
        if place.row is not None:
            from_store.append(place)
        return await page(place)

    monkeypatch.setattr(node.service.roster, "page", counted)
    first, second = node.connect().text("status"), node.connect().text("status")
    assert first == second
    assert len(from_store) == 1
    node.wait(CACHE_SECONDS + 0.1)
    node.connect().text("status")
    assert len(from_store) == 2


@pytest.mark.parametrize("command", ["status", "prioritystatus"])
def test_functions_in_memory_are_current_in_every_list(node: Node, command: str) -> None:
    node.worker(*(b"%d" % number for number in range(PAGE_SIZE)))
    lister = node.connect()
    assert "new" not in lister.text(command)
    worker = node.worker(b"new")
    assert "new\t" in lister.text(command)
    node.connect().background(b"", b"0")
    assert "\n0\t1\t" in "\n" + lister.text("status")
    worker.request(Type.CANT_DO, b"new")
    assert lister.text(command).splitlines()[-2] == ("new\t0\t0\t0" if command == "status" else "new\t0\t0\t0\t0")


def test_a_connection_sees_its_own_changes_to_functions_of_the_store(node: Node) -> None:
    rows(node, b"row")
    client = node.connect()
    handle = client.background(b"", b"other")
    node.connect().text("status")  # it is cached now
    client.background(b"", b"third")
    assert "third\t1\t0\t0\n" in client.text("status")
    admin = node.connect()
    assert "other\t1\t0\t0\n" in admin.text("status")
    admin.text(f"cancel job {handle}")
    assert "other\t" not in admin.text("status")


def test_a_new_function_of_another_connection_is_not_missing_in_a_cached_list(node: Node) -> None:
    rows(node, b"row")
    lister, other = node.connect(), node.connect()
    assert lister.text("status") == "row\t1\t0\t0\n.\n"
    moved = node.service.roster.moved
    other.background(b"", b"third")
    assert "third\t1\t0\t0\n" in lister.text("status")
    for _ in range(3):
        other.background(b"", b"third")
    assert node.service.roster.moved == moved + 1, "only its first job makes cached lists useless"


def test_a_function_that_has_left_the_memory_is_not_missing_in_a_cached_list(node: Node) -> None:
    client = node.connect()
    client.background()
    node.worker(G)
    rows(node, b"row")
    lister = node.connect()
    assert lister.text("status") == "f\t1\t0\t0\ng\t0\t0\t1\nrow\t1\t0\t0\n.\n"
    dispatch = node.service.dispatch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mainspring.jobs.dispatch.MAX_IDLE_FUNCTIONS", 0)
        list(dispatch.tidy())
    assert list(dispatch.queues) == [G]
    assert set(lister.text("status").splitlines()[1:-1]) == {"f\t1\t0\t0", "row\t1\t0\t0"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [("status", "f\t0\t0\t1\n.\n"), ("prioritystatus", "f\t0\t0\t0\t1\n.\n"), ("show jobs", ".\n")],
)
def test_a_list_comes_after_the_results_of_its_connection(node: Node, command: str, expected: str) -> None:
    handle = node.connect().background()
    worker = node.worker()
    assert worker.ask(Type.GRAB_JOB)[0] == "JOB_ASSIGN"
    worker.send(request(Type.WORK_COMPLETE, handle.encode(), b"") + command.encode() + b"\n")
    assert worker.received() == [], "the result is not on disk"
    node.commit()
    node.wait(0)
    assert "".join(args[0] for _, args in worker.received()) == expected


def test_a_list_does_not_wait_long_for_a_store_that_is_away(node: Node) -> None:
    handle = node.connect().background()
    worker = node.worker()
    assert worker.ask(Type.GRAB_JOB)[0] == "JOB_ASSIGN"
    node.life.store.away = True
    worker.send(request(Type.WORK_COMPLETE, handle.encode(), b"") + b"status\n")
    node.wait(COMMIT_LIMIT + 0.1)
    assert worker.listed().endswith(".\n")


def test_functions_with_stored_jobs_are_dropped_and_limited_like_others(node: Node) -> None:
    rows(node, b"row")
    client = node.connect()
    assert client.text("drop function row").startswith("ERR there are still")
    assert client.text("drop function unknown") == "ERR function not found\r\n"
    assert client.text("maxqueue row 1") == "OK\r\n"
    node.commit()
    assert client.ask(Type.SUBMIT_JOB_BG, b"row", b"", b"") == ("ERROR", ["QUEUE_ERROR", "Job queue is full"])


def test_jobs_are_cancelled(node: Node) -> None:
    client, worker = node.connect(), node.worker()
    handle = client.background()
    assert client.text(f"cancel job {handle}") == "OK\r\n"
    assert worker.ask(Type.GRAB_JOB) == ("NO_JOB", [])
    for unknown in ("nonsense", "H:n:1000000999999"):
        assert client.text(f"cancel job {unknown}").startswith("ERR UNKNOWN_JOB")


def test_functions_are_created_and_dropped_if_not_in_use(node: Node) -> None:
    client = node.connect()
    assert client.text("create function f") == "OK\r\n"
    assert client.text("status") == "f\t0\t0\t0\n.\n"
    handle = client.background()
    assert "ERR" in client.text("drop function f")
    client.text(f"cancel job {handle}")
    worker = node.worker()
    assert "ERR" in client.text("drop function f")
    worker.leave()
    assert client.text("drop function f") == "OK\r\n"
    assert "ERR" in client.text("drop function f")
    assert client.text("status") == ".\n"


def test_pid_version_and_verbosity(node: Node) -> None:
    client = node.connect()
    assert client.text("getpid") == f"OK {os.getpid()}\n"
    assert client.text("version") == f"OK {node.face.settings.version}\n"
    assert client.text("verbose") == f"OK {node.face.settings.verbosity}\n"
    assert client.text("dance").startswith("ERR UNKNOWN_COMMAND")


@pytest.mark.parametrize(("line", "graceful"), [("shutdown", False), ("shutdown graceful", True)])
def test_shutdown_needs_a_unix_socket_or_the_option_and_loopback(
    node: Node, line: str, graceful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    node.face.shut_down = asked.append
    socket_file = node.connect()
    monkeypatch.setattr(Wire, "get_extra_info", lambda _, name, default=None: facts.get(name, default))
    facts: dict[str, object] = {"peername": ("127.0.0.1", 5)}
    loopback = node.connect()
    facts["peername"] = ("10.0.0.7", 5)
    elsewhere = node.connect()
    assert loopback.text(line).startswith("ERR REFUSED")
    configure(node, allow_shutdown=True)
    assert elsewhere.text(line).startswith("ERR REFUSED")
    assert asked == []
    assert loopback.text(line) == "OK\r\n"
    configure(node, allow_shutdown=False)
    assert socket_file.text(line) == "OK\r\n"
    assert asked == [graceful] * 2


def test_commands_and_packets_are_answered_in_their_order(node: Node) -> None:
    client = node.connect()
    client.send(request(Type.SUBMIT_JOB_BG, F, b"", b"") + b"status\n" + request(Type.ECHO_REQ, b"x") + b"version\n")
    node.commit()
    names = [name for name, _ in client.received()]
    assert names[0] == "JOB_CREATED"
    assert set(names[1:]) == {"TEXT", "ECHO_RES"} or names[1:] == ["TEXT"]


def test_the_name_of_a_created_function_has_a_limit(node: Node) -> None:
    client = node.connect()
    assert client.text("create function " + "f" * 512) == "OK\r\n"
    assert client.text("create function " + "f" * 513).startswith("ERR ARGUMENT_TOO_LARGE")
    assert list(node.service.dispatch.queues) == [b"f" * 512]
