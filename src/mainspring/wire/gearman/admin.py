"""The administration protocol: text lines on the same port as the packets.

Every reply has the very bytes of gearmand 1.1.20, which ends some lines in LF and others in CR LF: scripts compare them.
One thing differs: control characters in names are escaped, since a line feed in a client's id would forge rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OK: Final = b"OK\r\n"
"""Answers ``cancel job``, ``create function``, ``drop function``, ``maxqueue`` and ``shutdown``."""
UNKNOWN_JOB: Final = b"ERR UNKNOWN_JOB\r\n"
"""Answers ``cancel job`` where no job has the handle."""
FUNCTION_NOT_FOUND: Final = b"ERR function not found\r\n"
"""Answers ``drop function`` where nobody has named the function."""
FUNCTION_IN_USE: Final = b"ERR there are still connected workers or executing clients\r\n"
"""Answers ``drop function`` where the function has workers or running jobs."""
END: Final = b".\n"
"""Ends every list."""

_UNKNOWN_SHOW: Final = b"ERR UNKNOWN_SHOW_ARGUMENTS\r\n"
_UNKNOWN_CANCEL: Final = b"ERR UNKNOWN_ERROR\r\n"

_WITHOUT_ARGUMENTS: Final = frozenset({b"status", b"workers", b"prioritystatus", b"getpid", b"version", b"verbose"})
_SPACES: Final = re.compile(rb" +")
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")
_NUMBER: Final = re.compile(rb"\s*([+-]?\d+)")


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its words in lower case, and its arguments.

    | name | args |
    |---|---|
    | ``status`` ``workers`` ``prioritystatus`` ``getpid`` ``version`` ``verbose`` | none |
    | ``show jobs`` ``show unique jobs`` | none |
    | ``cancel job`` | handle |
    | ``create function`` ``drop function`` | function |
    | ``maxqueue`` | function and up to three limits as they were written: see ``queue_limits`` |
    | ``shutdown`` | none, or ``graceful`` |
    """

    name: str
    args: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class FunctionStatus:
    """A function's counts: ``total`` jobs that have not ended, ``running`` ones, workers, and those waiting by priority.

    ``status`` shows the first three, ``prioritystatus`` the others and the workers.
    """

    name: bytes
    total: int
    running: int
    workers: int
    high: int = 0
    normal: int = 0
    low: int = 0


@dataclass(frozen=True, slots=True)
class ConnectedPeer:
    """A connection as ``workers`` lists it; functions stand in the reverse order of their registration.

    A client id that was never set is ``-``.
    """

    descriptor: int
    address: str
    client_id: bytes = b"-"
    functions: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job as ``show jobs`` lists it: ``cancelled`` but not yet dropped, ``background`` and waiting in the queue."""

    handle: bytes
    attempts: int
    cancelled: bool
    background: bool


def parse(line: bytes) -> Command | bytes:
    """Read a line without its end: a command, or the reply that refuses it.

    Words are parted by spaces alone and their case does not matter. Words after a command that takes none are ignored.
    """
    words = _SPACES.split(line)
    verb = words[0].lower()
    if verb in _WITHOUT_ARGUMENTS:
        return Command(verb.decode())
    count = len(words)
    noun = words[1].lower() if count > 1 else b""
    match verb:
        case b"show" if count > 1:
            if [word.lower() for word in words[1:]] in ([b"jobs"], [b"unique", b"jobs"]):
                return Command(b" ".join(words).lower().decode())
            return _UNKNOWN_SHOW
        case b"cancel" if count > 2:
            return Command("cancel job", (words[2],)) if noun == b"job" and count == 3 else _UNKNOWN_CANCEL
        case b"create" | b"drop":
            if noun == b"function" and count == 3:
                return Command(f"{verb.decode()} function", (words[2],))
            return incomplete(words[0])
        case b"maxqueue":
            return Command("maxqueue", tuple(words[1:])) if 2 <= count <= 5 else incomplete(words[0])
        case b"shutdown":
            if count == 1 or (count == 2 and noun == b"graceful"):
                return Command("shutdown", tuple(word.lower() for word in words[1:]))
            return incomplete(words[0])
    return unknown_command(words[0])


def queue_limits(limits: Sequence[bytes]) -> tuple[int, int, int]:
    """Read the limits of ``maxqueue`` as those for high, normal and low priority; 0 is no limit.

    One limit is for all priorities; of two the second is for normal, and low has none. What is no number counts as 0.
    """
    numbers = [_number(limit) for limit in limits[:3]]
    if len(numbers) == 1:
        numbers *= 3
    high, normal, low, *_ = [*numbers, 0, 0, 0]
    return high, normal, low


def _number(text: bytes) -> int:
    found = _NUMBER.match(text[:20])
    return max(0, int(found[1])) if found else 0


def unknown_command(word: bytes) -> bytes:
    """Refuse a command that there is not; also ``shutdown`` for those who may not use it."""
    return b"ERR UNKNOWN_COMMAND Unknown+server+command%b\r\n" % word


def incomplete(word: bytes) -> bytes:
    """Refuse a command that lacks arguments or has too many."""
    return b"ERR INVALID_ARGUMENTS An+incomplete+set+of+arguments+was+sent+to+this+command+%b\r\n" % word


def escape(name: bytes) -> bytes:
    r"""Write control characters as ``\x0a``; all else stays as it is."""
    return _CONTROL.sub(lambda found: b"\\x%02x" % found[0][0], name)


def listing(lines: Iterable[bytes]) -> bytes:
    """Put the lines of a list and its end together."""
    return b"".join(lines) + END


def status_line(status: FunctionStatus) -> bytes:
    """A line of ``status``."""
    return b"%b\t%d\t%d\t%d\n" % (escape(status.name), status.total, status.running, status.workers)


def priority_line(status: FunctionStatus) -> bytes:
    """A line of ``prioritystatus``."""
    return b"%b\t%d\t%d\t%d\t%d\n" % (escape(status.name), status.high, status.normal, status.low, status.workers)


def worker_line(peer: ConnectedPeer) -> bytes:
    """A line of ``workers``."""
    functions = b"".join(b" " + escape(function) for function in peer.functions)
    return b"%d %b %b :%b\n" % (peer.descriptor, peer.address.encode(), escape(peer.client_id), functions)


def job_line(job: JobLine) -> bytes:
    """A line of ``show jobs``."""
    return b"%b\t%d\t%d\t%d\n" % (job.handle, job.attempts, job.cancelled, job.background)


def unique_line(unique: bytes) -> bytes:
    """A line of ``show unique jobs``; empty where the job has no unique."""
    return escape(unique) + b"\n"


def version_reply(version: str) -> bytes:
    """The answer to ``version``."""
    return f"OK {version}\n".encode()


def verbose_reply(level: str) -> bytes:
    """The answer to ``verbose``: the log's level in gearmand's words, such as ``ERROR``."""
    return f"OK {level}\n".encode()


def pid_reply(pid: int) -> bytes:
    """The answer to ``getpid``."""
    return b"OK %d\n" % pid
