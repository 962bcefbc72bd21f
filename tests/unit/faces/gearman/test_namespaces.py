"""Two namespaces at one node: each tries to reach the other's jobs, packet by packet."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mainspring import namespaces
from mainspring.jobs.model import Job
from mainspring.jobs.store import Submit
from mainspring.wire.gearman_protocol import EXTENSION, Type

from .a_face import F, Node, Peer

TEAM = b"namespace=team"


def in_team(node: Node) -> Peer:
    peer = node.connect(extended=True)
    peer.request(Type.OPTION_REQ, TEAM)
    assert peer.received() == [("OPTION_RES", [TEAM.decode()])]
    return peer


def submit(peer: Peer, unique: bytes = b"", **options: Any) -> str:
    name, (handle, _) = peer.ask(Type.SUBMIT, F, unique, json.dumps(options).encode() if options else b"", b"load")
    assert name == "SUBMITTED"
    return handle


def worker(node: Node, peer: Peer) -> Peer:
    peer.request(Type.REGISTER, F, b"")
    peer.request(Type.READY, b"5")
    node.commit()
    return peer


def test_a_worker_gets_the_jobs_of_its_namespace_alone(node: Node) -> None:
    ours, theirs = submit(node.connect(extended=True)), submit(in_team(node))
    team, default = worker(node, in_team(node)), worker(node, node.connect(extended=True))
    for peer, handle in ((team, theirs), (default, ours)):
        ((name, args),) = peer.received()
        assert (name, args[0], args[2]) == ("ASSIGN", handle, "f"), "the worker sees the bare name"


def test_foreground_and_plain_packets_stay_in_the_namespace(node: Node) -> None:
    client, plain = in_team(node), node.worker(F)
    assert client.ask(Type.SUBMIT_JOB, F, b"u", b"x")[0] == "JOB_CREATED"
    assert plain.ask(Type.GRAB_JOB) == ("NO_JOB", [])
    ours = in_team(node)
    ours.request(Type.CAN_DO, F)
    name, (_, function, payload) = ours.ask(Type.GRAB_JOB)
    assert (name, function, payload) == ("JOB_ASSIGN", "f", "x")


def test_uniques_are_those_of_a_namespace(node: Node) -> None:
    default, team = node.connect(extended=True), in_team(node)
    handles = {submit(default, b"u"), submit(team, b"u")}
    assert len(handles) == 2
    assert submit(team, b"u") in handles
    status = {peer: peer.ask(Type.GET_STATUS_UNIQUE, b"u")[1][1] for peer in (default, team)}
    assert set(status.values()) == {"1"}


def test_a_job_of_another_namespace_is_unknown(node: Node) -> None:
    default, team = node.connect(extended=True), in_team(node)
    for owner, other in ((default, team), (team, default)):
        handle = submit(owner)
        for method in ("jobs.show", "jobs.cancel", "jobs.retry"):
            assert other.call(method, handle=handle) == "not_found", method
        assert other.ask(Type.GET_STATUS, handle.encode())[1][1:3] == ["0", "0"]
        assert other.ask(Type.WAIT, handle.encode())[1][1] == "unknown"
        assert owner.call("jobs.show", handle=handle)["function"] == "f"
        assert owner.ask(Type.GET_STATUS, handle.encode())[1][1] == "1"


def test_nobody_waits_for_the_result_of_another_namespace(node: Node) -> None:
    client, stranger = in_team(node), node.connect(extended=True)
    handle = submit(client)
    runs = worker(node, in_team(node))
    ((_, args),) = runs.received()
    assert stranger.ask(Type.WAIT, handle.encode())[1][1] == "unknown", "it is in the node's memory"
    runs.request(Type.SETTLE, args[0].encode(), args[1].encode(), b"succeeded", b"", b"secret")
    node.commit()
    assert stranger.received() == []
    assert stranger.ask(Type.WAIT, handle.encode())[1][1] == "unknown", "it is in the store"
    assert client.ask(Type.WAIT, handle.encode())[1][4] == "secret"


def test_a_worker_ends_no_job_of_another_namespace(node: Node) -> None:
    client, plain, stranger = in_team(node), node.worker(F), worker(node, node.connect(extended=True))
    handle = submit(client)
    runs = worker(node, in_team(node))
    ((_, args),) = runs.received()
    client.request(Type.WAIT, handle.encode())
    for kind in (Type.WORK_COMPLETE, Type.WORK_DATA, Type.WORK_EXCEPTION):
        plain.request(kind, handle.encode(), b"forged")
    plain.request(Type.WORK_FAIL, handle.encode())
    stranger.request(Type.SETTLE, args[0].encode(), args[1].encode(), b"succeeded", b"", b"forged")
    node.commit()
    assert client.call("jobs.show", handle=handle)["state"] == "running"
    runs.request(Type.SETTLE, args[0].encode(), args[1].encode(), b"succeeded", b"", b"true")
    node.commit()
    ((_, ended),) = client.received()
    assert ended[4] == "true"


def test_a_waiting_stranger_gets_nothing_while_its_handle_is_looked_up(node: Node) -> None:
    client, stranger, runs = in_team(node), node.connect(extended=True), in_team(node)
    handle = submit(client)
    stranger.request(Type.WAIT, handle.encode())  # the store is asked, and has not answered
    worker(node, runs)
    (_, args) = next(packet for packet in runs.received() if packet[0] == "ASSIGN")
    runs.request(Type.WORK_DATA, args[0].encode(), b"secret")
    node.commit()
    assert [packet[1][1] for packet in stranger.received()] == ["unknown"]


def test_lists_and_watches_have_one_namespace(node: Node) -> None:
    default, team, watch = node.connect(extended=True), in_team(node), node.connect(extended=True)
    assert watch.call("jobs.watch") == {}
    ours, theirs = submit(default), submit(team)
    for peer, handle in ((default, ours), (team, theirs)):
        assert [job["handle"] for job in peer.call("jobs.list")["items"]] == [handle]
        assert [job["handle"] for job in peer.call("jobs.list", function="f", state="pending")["items"]] == [handle]
        assert peer.text("status").splitlines()[0].split("\t")[:2] == ["f", "1"]
    events = [json.loads(args[1])["handle"] for name, args in watch.received() if name == "EVENT"]
    assert set(events) == {ours}


@pytest.mark.parametrize("name", [b"team\x1ff", b"\x1fd\x1fteam\x1forder@1", b"f\x1f"])
def test_names_with_the_separator_are_refused(node: Node, name: bytes) -> None:
    for peer in (node.connect(extended=True), in_team(node)):
        for kind, args in (
            (Type.SUBMIT, (name, b"", b"", b"")),
            (Type.SUBMIT_JOB_BG, (name, b"", b"")),
            (Type.SUBMIT_JOB, (name, b"", b"")),
            (Type.SUBMIT_REDUCE_JOB_BACKGROUND, (F, b"", name, b"", b"")),
            (Type.REGISTER, (name, b"")),
            (Type.CAN_DO, (name,)),
        ):
            answer, (code, _) = peer.ask(kind, *args)
            assert (answer, code) == ("ERROR", "INVALID_FUNCTION_NAME"), kind


@pytest.mark.parametrize("namespace", [b"", b"Team", b"a b", b"a\x1fb", b"x" * 64])
def test_a_wrong_namespace_is_refused(node: Node, namespace: bytes) -> None:
    answer, (code, _) = node.connect(extended=True).ask(Type.OPTION_REQ, b"namespace=" + namespace)
    assert (answer, code) == ("ERROR", "INVALID_NAMESPACE")


def test_a_namespace_is_chosen_before_the_first_request(node: Node) -> None:
    peer = node.connect(extended=True)
    peer.request(Type.REGISTER, F, b"")
    answer, (code, _) = peer.ask(Type.OPTION_REQ, TEAM)
    assert (answer, code) == ("ERROR", "INVALID_NAMESPACE")


def test_a_call_names_a_namespace(node: Node) -> None:
    handle = submit(in_team(node))
    default, team = node.connect(extended=True), in_team(node)
    assert default.call("jobs.show", handle=handle, namespace="team")["handle"] == handle
    assert team.call("jobs.show", handle=handle, namespace="other") == "usage"
    assert default.call("jobs.show", handle=handle, namespace="Team") == "usage"


def test_a_port_has_one_namespace(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = node.connect()
    bound = peer.wire.protocol.peer
    bound.use_namespace("team")
    monkeypatch.setattr(bound, "is_bound", True)
    handle = peer.background()
    peer.request(Type.OPTION_REQ, EXTENSION)
    peer.request(Type.OPTION_REQ, b"namespace=default")
    assert [name for name, _ in peer.received()] == ["OPTION_RES", "ERROR"]
    assert peer.call("jobs.show", handle=handle, namespace="other") == "usage"
    assert peer.call("jobs.show", handle=handle)["function"] == "f"
    assert node.connect(extended=True).call("jobs.show", handle=handle) == "not_found"


def test_a_job_that_an_old_version_stored_is_reachable_and_is_nobody_elses(node: Node) -> None:
    job = Job(node.service.table.next_id(), namespaces.key("default", b"team\x1ff"), b"old", created_us=1)
    node.life.commits.put(Submit([job]), lambda _: None)
    node.commit()
    handle = node.service.handles.of(job.id).decode()
    assert node.connect(extended=True).call("jobs.show", handle=handle)["function"] == "team\x1ff"
    assert in_team(node).call("jobs.show", handle=handle) == "not_found"
    assert worker(node, in_team(node)).received() == []
    assert node.connect(extended=True).call("jobs.cancel", handle=handle)["state"] == "cancelled"
