"""Compares the administration protocol with the recorded bytes of gearmand 1.1.20 (Debian's 1.1.20+ds)."""

from __future__ import annotations

import pytest

from mainspring.wire import gearman_admin
from mainspring.wire.gearman_admin import Command, ConnectedPeer, FunctionStatus, JobLine

INCOMPLETE = b"ERR INVALID_ARGUMENTS An+incomplete+set+of+arguments+was+sent+to+this+command+"
UNKNOWN = b"ERR UNKNOWN_COMMAND Unknown+server+command"
SHOW = b"ERR UNKNOWN_SHOW_ARGUMENTS\r\n"

# Each line was sent to gearmand. Refusals are its recorded replies.
LINES: list[tuple[bytes, Command | bytes]] = [
    (b"status", Command("status")),
    (b"STATUS", Command("status")),
    (b"Status", Command("status")),
    (b"status x", Command("status")),
    (b"status a b c d", Command("status")),
    (b"status ", Command("status")),
    (b"  status", UNKNOWN + b"\r\n"),
    (b"\tversion", UNKNOWN + b"\tversion\r\n"),
    (b"statusx", UNKNOWN + b"statusx\r\n"),
    (b"workers", Command("workers")),
    (b"prioritystatus", Command("prioritystatus")),
    (b"version", Command("version")),
    (b"verbose", Command("verbose")),
    (b"getpid", Command("getpid")),
    (b"", UNKNOWN + b"\r\n"),
    (b" ", UNKNOWN + b"\r\n"),
    (b"foo", UNKNOWN + b"foo\r\n"),
    (b"foo bar", UNKNOWN + b"foo\r\n"),
    (b"GET / HTTP/1.0", UNKNOWN + b"GET\r\n"),
    (b"\xff\xfe\x01", UNKNOWN + b"\xff\xfe\x01\r\n"),
    (b"version\rfoo", UNKNOWN + b"version\rfoo\r\n"),
    (b"show", UNKNOWN + b"show\r\n"),
    (b"show\tjobs", UNKNOWN + b"show\tjobs\r\n"),
    (b"show foo", SHOW),
    (b"show ", SHOW),
    (b"show jobs extra", SHOW),
    (b"show unique", SHOW),
    (b"show unique foo", SHOW),
    (b"show unique jobs x", SHOW),
    (b"show unique jobs ", SHOW),
    (b"show jobs", Command("show jobs")),
    (b"show  jobs", Command("show jobs")),
    (b"SHOW JOBS", Command("show jobs")),
    (b"show unique JOBS", Command("show unique jobs")),
    (b"cancel", UNKNOWN + b"cancel\r\n"),
    (b"cancel job", UNKNOWN + b"cancel\r\n"),
    (b"cancel ", UNKNOWN + b"cancel\r\n"),
    (b"cancel foo", UNKNOWN + b"cancel\r\n"),
    (b"cancel foo bar", b"ERR UNKNOWN_ERROR\r\n"),
    (b"cancel job H:none:1 x", b"ERR UNKNOWN_ERROR\r\n"),
    (b"cancel job H:vm:1", Command("cancel job", (b"H:vm:1",))),
    (b"cancel  JOB  H:vm:1", Command("cancel job", (b"H:vm:1",))),
    (b"create", INCOMPLETE + b"create\r\n"),
    (b"create function", INCOMPLETE + b"create\r\n"),
    (b"create foo", INCOMPLETE + b"create\r\n"),
    (b"create foo bar", INCOMPLETE + b"create\r\n"),
    (b"create function a b", INCOMPLETE + b"create\r\n"),
    (b"create function F", Command("create function", (b"F",))),
    (b"create FUNCTION  f", Command("create function", (b"f",))),
    (b"create function ", Command("create function", (b"",))),
    (b"drop", INCOMPLETE + b"drop\r\n"),
    (b"drop function", INCOMPLETE + b"drop\r\n"),
    (b"drop foo bar", INCOMPLETE + b"drop\r\n"),
    (b"drop FUNCTION f", Command("drop function", (b"f",))),
    (b"maxqueue", INCOMPLETE + b"maxqueue\r\n"),
    (b"maxqueue f", Command("maxqueue", (b"f",))),
    (b"maxqueue ", Command("maxqueue", (b"",))),
    (b"maxqueue f 1", Command("maxqueue", (b"f", b"1"))),
    (b"maxqueue f 1 2 3", Command("maxqueue", (b"f", b"1", b"2", b"3"))),
]

# gearmand closes the connection at a sixth word, and has had no `shutdown` since 1.1.15. Both lines are Mainspring's own.
OUR_LINES: list[tuple[bytes, Command | bytes]] = [
    (b"status a b c d e f g h", Command("status")),
    (b"foo a b c d e", UNKNOWN + b"foo\r\n"),
    (b"create function a b c d", INCOMPLETE + b"create\r\n"),
    (b"maxqueue f 1 2 3 4", INCOMPLETE + b"maxqueue\r\n"),
    (b"shutdown", Command("shutdown")),
    (b"shutdown Graceful", Command("shutdown", (b"graceful",))),
    (b"shutdown now", INCOMPLETE + b"shutdown\r\n"),
    (b"shutdown graceful now", INCOMPLETE + b"shutdown\r\n"),
]


@pytest.mark.parametrize(("line", "expected"), LINES + OUR_LINES)
def test_lines(line: bytes, expected: Command | bytes) -> None:
    assert gearman_admin.parse(line) == expected


# Observed as the number of jobs, out of three of each priority, that gearmand accepted under these limits.
@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ([], (0, 0, 0)),
        ([b"1"], (1, 1, 1)),
        ([b"0"], (0, 0, 0)),
        ([b"x"], (0, 0, 0)),
        ([b""], (0, 0, 0)),
        ([b"-1"], (0, 0, 0)),
        ([b"+2"], (2, 2, 2)),
        ([b"1x"], (1, 1, 1)),
        ([b"0x2"], (0, 0, 0)),
        ([b"1", b"2"], (1, 2, 0)),
        ([b"1", b"2", b"3"], (1, 2, 3)),
        ([b"2", b"0", b"1"], (2, 0, 1)),
        ([b"1", b"x", b"2"], (1, 0, 2)),
    ],
)
def test_queue_limits(limits: list[bytes], expected: tuple[int, int, int]) -> None:
    assert gearman_admin.queue_limits(limits) == expected


def test_a_queue_limit_may_have_any_number_of_digits() -> None:
    assert min(gearman_admin.queue_limits([b"9" * 8000])) > 2**32


FUNCTIONS = [
    FunctionStatus(b"fq", total=5, running=0, workers=0, high=1, normal=3, low=1),
    FunctionStatus(b"fa", total=1, running=1, workers=2),
    FunctionStatus(b"", total=0, running=0, workers=0),
]


@pytest.mark.parametrize(
    ("reply", "wire"),
    [
        (gearman_admin.listing([]), b".\n"),
        (gearman_admin.listing(map(gearman_admin.status_line, FUNCTIONS)), b"fq\t5\t0\t0\nfa\t1\t1\t2\n\t0\t0\t0\n.\n"),
        (
            gearman_admin.listing(map(gearman_admin.priority_line, FUNCTIONS)),
            b"fq\t1\t3\t1\t0\nfa\t0\t0\t0\t2\n\t0\t0\t0\t0\n.\n",
        ),
        (gearman_admin.worker_line(ConnectedPeer(18, "127.0.0.1")), b"18 127.0.0.1 - :\n"),
        (gearman_admin.worker_line(ConnectedPeer(16, "127.0.0.1", b"a b", [b"fa"])), b"16 127.0.0.1 a b : fa\n"),
        (
            gearman_admin.worker_line(ConnectedPeer(15, "127.0.0.1", b"wid", [b"ft", b"fa"])),
            b"15 127.0.0.1 wid : ft fa\n",
        ),
        (gearman_admin.worker_line(ConnectedPeer(16, "127.0.0.1", b"", [b"", b"zz"])), b"16 127.0.0.1  :  zz\n"),
        (gearman_admin.job_line(JobLine(b"H:vm:1", 0, cancelled=False, background=True)), b"H:vm:1\t0\t0\t1\n"),
        (gearman_admin.job_line(JobLine(b"H:vm:4", 2, cancelled=True, background=False)), b"H:vm:4\t2\t1\t0\n"),
        (gearman_admin.listing(map(gearman_admin.unique_line, [b"", b"u1", b"-"])), b"\nu1\n-\n.\n"),
        (gearman_admin.version_reply("1.1.20+ds"), b"OK 1.1.20+ds\n"),
        (gearman_admin.verbose_reply("ERROR"), b"OK ERROR\n"),
        (gearman_admin.pid_reply(7334), b"OK 7334\n"),
        (gearman_admin.OK, b"OK\r\n"),
        (gearman_admin.UNKNOWN_JOB, b"ERR UNKNOWN_JOB\r\n"),
        (gearman_admin.FUNCTION_NOT_FOUND, b"ERR function not found\r\n"),
        (gearman_admin.FUNCTION_IN_USE, b"ERR there are still connected workers or executing clients\r\n"),
        (gearman_admin.unknown_command(b"shutdown"), b"ERR UNKNOWN_COMMAND Unknown+server+commandshutdown\r\n"),
    ],
)
def test_replies(reply: bytes, wire: bytes) -> None:
    assert reply == wire


@pytest.mark.parametrize(
    "line",
    [
        gearman_admin.worker_line(ConnectedPeer(1, "127.0.0.1", b"a\n9 1.2.3.4 forged :\x7f", [b"f\n.\n"])),
        gearman_admin.status_line(FunctionStatus(b"f\n.\t", 0, 0, 0)),
        gearman_admin.priority_line(FunctionStatus(b"f\n.\t", 0, 0, 0)),
        gearman_admin.unique_line(b"u\n."),
    ],
)
def test_names_cannot_forge_rows(line: bytes) -> None:
    assert line.count(b"\n") == 1
    assert b"\\x0a" in line
    assert b"\x7f" not in line


def test_letters_beyond_ascii_are_not_escaped() -> None:
    assert gearman_admin.escape("größe".encode()) == "größe".encode()
