"""The administration protocol on a connection; the words themselves are tested with the wire."""

from __future__ import annotations

import os

import pytest

from mainspring.wire.gearman.packets import Type, request

from .a_face import F, G, Node


def test_status_counts_jobs_and_workers(node: Node) -> None:
    client, worker = node.connect(), node.worker(F, G)
    for kind in (Type.SUBMIT_JOB_HIGH_BG, Type.SUBMIT_JOB_BG, Type.SUBMIT_JOB_LOW_BG, Type.SUBMIT_JOB):
        client.say(kind, F, b"", b"")
    node.commit()
    worker.say(Type.CAN_DO, F)
    worker.say(Type.GRAB_JOB)
    assert client.hear()
    assert client.text("status") == "f\t4\t1\t2\ng\t0\t0\t1\n.\n"
    assert client.text("prioritystatus") == "f\t0\t2\t1\t2\ng\t0\t0\t0\t1\n.\n"


def test_workers_are_listed_with_their_functions(node: Node) -> None:
    node.connect()
    worker = node.worker(F, G)
    worker.say(Type.SET_CLIENT_ID, b"me\n")
    text = node.connect().text("workers")
    lines = text.split("\n")
    assert len(lines) == 5
    assert lines[1].startswith("-1 localhost me")
    assert lines[1].endswith(": g f")
    assert lines[2].endswith(":")


def test_jobs_are_shown_wherever_they_are(node: Node) -> None:
    client = node.connect()
    later = b"%d" % (int(node.clock.wall()) + 60)
    client.send(
        request(Type.SUBMIT_JOB_BG, F, b"u", b"")
        + request(Type.SUBMIT_JOB, G, b"v", b"")
        + request(Type.SUBMIT_JOB_EPOCH, F, b"w", later, b"")
    )
    node.commit()
    handles = [args[0] for _, args in client.hear()]
    shown = client.text("show jobs")
    assert {line.split("\t")[0] for line in shown.split("\n")[:-2]} == set(handles)
    unique = client.text("show unique jobs")
    assert [line for line in unique.split("\n") if line] == ["v", "u", "w", "."]


def test_a_store_that_fails_cannot_be_shown(node: Node) -> None:
    client = node.connect()
    client.send(b"show jobs\n")
    node.fail()
    ((_, (text,)),) = client.hear()
    assert text.startswith("ERR STORE")


def test_jobs_are_cancelled(node: Node) -> None:
    client, worker = node.connect(), node.worker()
    handle = client.background()
    assert client.text(f"cancel job {handle}") == "OK\r\n"
    assert worker.ask(Type.GRAB_JOB) == ("NO_JOB", [])
    for unknown in ("nonsense", "H:n:1000000999999"):
        assert client.text(f"cancel job {unknown}").startswith("ERR UNKNOWN_JOB")


def test_functions_are_created_and_dropped_unless_they_are_in_use(node: Node) -> None:
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


def test_numbers_and_words(node: Node) -> None:
    client = node.connect()
    assert client.text("getpid") == f"OK {os.getpid()}\n"
    assert client.text("version") == f"OK {node.face.settings.version}\n"
    assert client.text("verbose") == f"OK {node.face.settings.verbosity}\n"
    assert client.text("dance").startswith("ERR UNKNOWN_COMMAND")


@pytest.mark.parametrize(("line", "graceful"), [("shutdown", False), ("shutdown graceful", True)])
def test_the_node_is_shut_down_from_its_own_machine_only(node: Node, line: str, graceful: bool) -> None:
    asked: list[bool] = []
    node.face.shut_down = asked.append
    client = node.connect()
    client.wire.peer.address = "10.0.0.7"
    assert client.text(line).startswith("ERR REFUSED")
    assert asked == []
    client.wire.peer.address = "127.0.0.1"
    assert client.text(line) == "OK\r\n"
    assert asked == [graceful]


def test_texts_and_packets_are_answered_in_their_order(node: Node) -> None:
    client = node.connect()
    client.send(request(Type.SUBMIT_JOB_BG, F, b"", b"") + b"status\n" + request(Type.ECHO_REQ, b"x") + b"version\n")
    node.commit()
    names = [name for name, _ in client.hear()]
    assert names[0] == "JOB_CREATED"
    assert set(names[1:]) == {"TEXT", "ECHO_RES"} or names[1:] == ["TEXT"]


def test_a_function_that_is_created_has_a_name_of_limited_length(node: Node) -> None:
    client = node.connect()
    assert client.text("create function " + "f" * 512) == "OK\r\n"
    assert client.text("create function " + "f" * 513).startswith("ERR ARGUMENT_TOO_LARGE")
    assert list(node.service.dispatch.queues) == [b"f" * 512]
