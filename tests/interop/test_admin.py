"""The text protocol for administrators, byte for byte: replies have different line endings, and scripts depend on them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from .conftest import SERVER_KINDS
from .packets import Kind, packet_of

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Start
    from .packets import Packet, Peer
    from .servers import Server

OK = b"OK\r\n"


def rows(server: Server, command: bytes, function: bytes) -> list[bytes]:
    """Return a table's lines with a function: the tests share servers."""
    return [line for line in server.peer().table(command) if function in line]


def unknown_command(command: bytes) -> bytes:
    return b"ERR UNKNOWN_COMMAND Unknown+server+command" + command + b"\r\n"


def incomplete_command(command: bytes) -> bytes:
    return b"ERR INVALID_ARGUMENTS An+incomplete+set+of+arguments+was+sent+to+this+command+" + command + b"\r\n"


@pytest.mark.parametrize("command", [b"version", b"VERSION", b"version x", b"version\r"])
def test_version_returns_ok_and_a_version(server: Server, command: bytes) -> None:
    assert re.fullmatch(rb"OK \S+\n", server.peer().ask(command))


def test_verbose_returns_the_default_level(server: Server) -> None:
    assert server.peer().ask(b"verbose") == b"OK ERROR\n"


STORE_DOES_NOT_MATTER = pytest.mark.parametrize("kind", SERVER_KINDS[:2])
"""For tests of options, which start servers."""


@STORE_DOES_NOT_MATTER
@pytest.mark.parametrize("level", ["FATAL", "ALERT", "CRITICAL", "ERROR", "WARNING", "NOTICE", "INFO", "DEBUG"])
def test_verbose_returns_the_level_of_the_option(start: Start, level: str) -> None:
    assert start("--verbose", level).peer().ask(b"verbose") == b"OK %b\n" % level.encode()


@STORE_DOES_NOT_MATTER
@pytest.mark.parametrize(
    ("content", "level"),
    [
        ("--verbose=DEBUG\n", b"DEBUG"),
        ("--round-robin --verbose NOTICE\n-w 2\n", b"NOTICE"),
        ("# --exceptions\n  --verbose=INFO\n", b"INFO"),
    ],
)
def test_verbose_returns_the_level_of_a_configuration_file(
    start: Start, tmp_path: Path, content: str, level: bytes
) -> None:
    """gearmand's file has the options of its command line."""
    file = tmp_path / "gearmand.conf"
    file.write_text(content)
    assert start(f"--config-file={file}").peer().ask(b"verbose") == b"OK %b\n" % level
    assert start(f"--config-file={file}", "--verbose=WARNING").peer().ask(b"verbose") == b"OK WARNING\n"


def test_getpid_returns_the_process_id(server: Server) -> None:
    assert server.peer().ask(b"getpid") == b"OK %d\n" % server.process.pid


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (b"", unknown_command(b"")),
        (b"\r", unknown_command(b"")),
        (b" version", unknown_command(b"")),
        (b"nonsense", unknown_command(b"nonsense")),
        (b"nonsense and more", unknown_command(b"nonsense")),
        (b"show", unknown_command(b"show")),
        (b"show nonsense", b"ERR UNKNOWN_SHOW_ARGUMENTS\r\n"),
        (b"show jobs now", b"ERR UNKNOWN_SHOW_ARGUMENTS\r\n"),
        (b"cancel", unknown_command(b"cancel")),
        (b"cancel job", unknown_command(b"cancel")),
        (b"cancel nonsense", unknown_command(b"cancel")),
        (b"cancel job H:nowhere:1", b"ERR UNKNOWN_JOB\r\n"),
        (b"create", incomplete_command(b"create")),
        (b"create nonsense", incomplete_command(b"create")),
        (b"create function", incomplete_command(b"create")),
        (b"drop", incomplete_command(b"drop")),
        (b"drop nonsense", incomplete_command(b"drop")),
        (b"drop function", incomplete_command(b"drop")),
        (b"drop function no-such-function", b"ERR function not found\r\n"),
        (b"maxqueue", incomplete_command(b"maxqueue")),
        (b"maxqueue no-such-function", OK),
        (b"maxqueue no-such-function 5", OK),
        (b"maxqueue no-such-function 1 2 3", OK),
    ],
)
def test_commands_have_constant_answers(server: Server, command: bytes, answer: bytes) -> None:
    peer = server.peer()
    assert peer.ask(command) == answer
    peer.sync()


def test_status_counts_all_jobs_running_jobs_and_workers(server: Server, function: bytes) -> None:
    client = server.peer()
    client.submit(function, b"", b"")
    assert rows(server, b"status", function) == [function + b"\t1\t0\t0\n"]
    for kind in (Kind.SUBMIT_JOB_BG, Kind.SUBMIT_JOB_HIGH_BG):
        client.submit(function, b"", b"", kind)
    worker, _idle = server.worker(function), server.worker(function)
    worker.grab_assigned()
    handle = worker.grab_assigned()[0]
    assert rows(server, b"status", function) == [function + b"\t3\t2\t2\n"]
    worker.complete(handle)
    assert rows(server, b"STATUS", function) == [function + b"\t2\t1\t2\n"]


def test_a_function_stays_in_the_status_when_it_has_nothing_left(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    client.submit(function, b"", b"")
    worker.complete(worker.grab_assigned()[0])
    worker.send(Kind.CANT_DO, function)
    worker.sync()
    assert rows(server, b"status", function) == [function + b"\t0\t0\t0\n"]


def test_prioritystatus_counts_waiting_jobs_by_priority(server: Server, function: bytes) -> None:
    client = server.peer()
    for kind, count in {Kind.SUBMIT_JOB_HIGH_BG: 1, Kind.SUBMIT_JOB: 2, Kind.SUBMIT_JOB_LOW_BG: 3}.items():
        for _ in range(count):
            client.submit(function, b"", b"", kind)
    assert rows(server, b"prioritystatus", function) == [function + b"\t1\t2\t3\t0\n"]
    worker = server.worker(function)
    worker.grab_assigned()
    assert rows(server, b"prioritystatus", function) == [function + b"\t0\t2\t3\t1\n"]


def test_workers_lists_connections_newest_ability_first(server: Server, function: bytes) -> None:
    worker = server.peer()
    worker.send(Kind.SET_CLIENT_ID, b"worker one")
    worker.can_do(function + b"-1", function + b"-2", function + b"-3")
    (row,) = rows(server, b"workers", function)
    abilities = b" ".join(function + b"-%d" % number for number in (3, 2, 1))
    assert re.fullmatch(rb"\d+ 127\.0\.0\.1 worker one : " + re.escape(abilities) + rb"\n", row)
    worker.send(Kind.CANT_DO, function + b"-2")
    worker.sync()
    (row,) = rows(server, b"workers", function)
    assert row.endswith(b" : " + function + b"-3 " + function + b"-1\n")


def test_workers_lists_also_clients_without_a_name(server: Server) -> None:
    me = server.peer()
    lines = me.table(b"workers")
    assert lines
    assert all(re.fullmatch(rb"\d+ 127\.0\.0\.1 - :\n", line) for line in lines)


def test_a_client_id_may_change(server: Server, unique: bytes) -> None:
    peer = server.peer()
    for name in (b"old-" + unique, b"new-" + unique):
        peer.send(Kind.SET_CLIENT_ID, name)
        peer.sync()
    (row,) = rows(server, b"workers", unique)
    assert row.endswith(b" 127.0.0.1 new-" + unique + b" :\n")


def test_show_jobs_has_handle_losses_cancelled_and_background(server: Server, function: bytes) -> None:
    client = server.peer()
    waiting = client.submit(function, b"", b"")
    background = client.submit(function, b"", b"", Kind.SUBMIT_JOB_LOW_BG)
    worker = server.worker(function)
    assert worker.grab_assigned()[0] == waiting
    assert rows(server, b"show jobs", waiting + b"\t") == [waiting + b"\t0\t0\t0\n"]
    assert rows(server, b"show jobs", background + b"\t") == [background + b"\t0\t0\t1\n"]
    worker.close()
    client.await_status(waiting, b"1", b"0", b"0", b"0")
    assert rows(server, b"show jobs", waiting + b"\t") == [waiting + b"\t1\t0\t0\n"]


def test_show_unique_jobs_lists_uniques_of_waiting_and_running_jobs(
    server: Server, function: bytes, unique: bytes
) -> None:
    client, worker = server.peer(), server.worker(function)
    for number in range(2):
        client.submit(function, unique + b"%d" % number, b"")
    worker.complete(worker.grab_assigned()[0])
    worker.grab_assigned()
    assert rows(server, b"show unique jobs", unique) == [unique + b"1\n"]


def test_a_cancelled_job_fails_for_its_clients_and_never_runs(server: Server, function: bytes) -> None:
    clients, watcher = [server.peer(), server.peer()], server.peer()
    (handle,) = {client.submit(function, b"u", b"") for client in clients}
    assert watcher.ask(b"cancel job " + handle) == OK
    for client in clients:
        assert client.pending() == [packet_of(Kind.WORK_FAIL, handle)]
    assert server.worker(function).grab() == packet_of(Kind.NO_JOB)
    assert watcher.status(handle) == (b"0", b"0", b"0", b"0")


def test_a_cancelled_background_job_never_runs(server: Server, function: bytes) -> None:
    client = server.peer()
    handle = client.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
    kept = client.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
    assert client.ask(b"cancel job " + handle + b"\r") == OK
    worker = server.worker(function)
    assert worker.grab_assigned()[0] == kept
    worker.complete(kept)
    assert worker.grab() == packet_of(Kind.NO_JOB)
    client.sync()


def test_functions_are_created_and_dropped(server: Server, function: bytes) -> None:
    peer = server.peer()
    assert peer.ask(b"create function " + function + b"\r") == OK
    assert rows(server, b"status", function) == [function + b"\t0\t0\t0\n"]
    assert peer.ask(b"create function " + function + b"\r") == OK
    assert peer.ask(b"drop function " + function) == OK
    assert rows(server, b"status", function) == []


def test_a_function_with_workers_or_running_jobs_is_not_dropped(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    refusal = b"ERR there are still connected workers or executing clients\r\n"
    assert client.ask(b"drop function " + function) == refusal
    client.submit(function, b"", b"")
    worker.grab_assigned()
    assert client.ask(b"drop function " + function) == refusal


def test_a_limit_counts_all_jobs_of_the_function(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    assert client.ask(b"maxqueue " + function + b" 2") == OK
    full = packet_of(Kind.ERROR, b"QUEUE_ERROR", b"Job queue is full")
    assert submit_refusal(client, function, b"", Kind.SUBMIT_JOB_BG) is None
    handle, _, _ = worker.grab_assigned()
    assert submit_refusal(client, function, b"", Kind.SUBMIT_JOB_HIGH_BG) is None
    for kind in (Kind.SUBMIT_JOB_BG, Kind.SUBMIT_JOB_HIGH, Kind.SUBMIT_JOB_LOW_BG):
        assert submit_refusal(client, function, b"", kind) == full
    worker.complete(handle)
    assert submit_refusal(client, function, b"", Kind.SUBMIT_JOB_LOW_BG) is None
    assert submit_refusal(client, function, b"", Kind.SUBMIT_JOB_HIGH_BG) == full


def test_three_limits_are_for_high_normal_and_low_submits(server: Server, function: bytes) -> None:
    client, _worker = server.peer(), server.worker(function)
    assert client.ask(b"maxqueue " + function + b" 1 3 0\r") == OK
    accepted = {}
    for kind in (Kind.SUBMIT_JOB_HIGH_BG, Kind.SUBMIT_JOB_BG, Kind.SUBMIT_JOB_LOW_BG):
        accepted[kind] = [submit_refusal(client, function, b"", kind) for _ in range(4)].count(None)
    assert list(accepted.values()) == [1, 2, 4]


def test_a_full_queue_can_still_be_joined(server: Server, function: bytes) -> None:
    client, _worker = server.peer(), server.worker(function)
    assert client.ask(b"maxqueue " + function + b" 1") == OK
    assert submit_refusal(client, function, b"u", Kind.SUBMIT_JOB_BG) is None
    assert submit_refusal(client, function, b"v", Kind.SUBMIT_JOB_BG) is not None
    assert submit_refusal(client, function, b"u", Kind.SUBMIT_JOB) is None


@pytest.mark.parametrize("submit", [Kind.SUBMIT_JOB, Kind.SUBMIT_JOB_LOW_BG])
def test_a_foreground_job_of_a_full_queue_can_still_be_joined(server: Server, function: bytes, submit: Kind) -> None:
    client, worker = server.peer(), server.worker(function)
    assert client.ask(b"maxqueue " + function + b" 1") == OK
    handle = client.submit(function, b"u", b"")
    assert server.peer().submit(function, b"u", b"", submit) == handle
    assert submit_refusal(server.peer(), function, b"v", submit) is not None
    assert worker.grab_assigned()[0] == handle
    worker.complete(handle, b"end")
    assert client.pending() == [packet_of(Kind.WORK_COMPLETE, handle, b"end")]


def test_a_limit_without_a_number_removes_the_limit(server: Server, function: bytes) -> None:
    client, _worker = server.peer(), server.worker(function)
    assert client.ask(b"maxqueue " + function + b" 1") == OK
    assert client.ask(b"maxqueue " + function) == OK
    assert [submit_refusal(client, function, b"", Kind.SUBMIT_JOB_BG) for _ in range(4)] == [None] * 4


def submit_refusal(client: Peer, function: bytes, unique: bytes, kind: Kind) -> Packet | None:
    """Submit a job, and return the refusal, or None if it is accepted."""
    client.send(kind, function, unique, b"")
    packet = client.receive()
    return None if packet.kind is Kind.JOB_CREATED else packet


def test_pipelined_commands_are_answered_in_order(server: Server) -> None:
    peer = server.peer()
    peer.write(b"version\nverbose\r\nshow nothing\ngetpid\r\n")
    assert peer.line().startswith(b"OK ")
    assert peer.line() == b"OK ERROR\n"
    assert peer.line() == b"ERR UNKNOWN_SHOW_ARGUMENTS\r\n"
    assert peer.line() == b"OK %d\n" % server.process.pid


def test_text_and_packets_may_be_mixed(server: Server) -> None:
    peer = server.peer()
    peer.send(Kind.ECHO_REQ, b"a")
    peer.write(b"verbose\r\n")
    peer.send(Kind.ECHO_REQ, b"b")
    assert peer.receive() == packet_of(Kind.ECHO_RES, b"a")
    assert peer.line() == b"OK ERROR\n"
    assert peer.receive() == packet_of(Kind.ECHO_RES, b"b")


def test_a_line_may_come_byte_by_byte(server: Server) -> None:
    peer = server.peer()
    for number in b"verbose\r\n":
        peer.write(bytes([number]))
    assert peer.line() == b"OK ERROR\n"


def test_a_line_without_end_closes_the_connection(server: Server) -> None:
    peer, other = server.peer(), server.peer()
    peer.write(b"x" * 9000)
    assert peer.is_refused()
    other.sync()


def test_a_new_server_has_empty_tables(start: Start) -> None:
    server = start()
    for command in (b"status", b"prioritystatus", b"show jobs", b"show unique jobs"):
        assert server.peer().table(command) == []
