"""The administration protocol: text lines on the same port as the packets.

Every reply has the same bytes as gearmand 1.1.20, which ends some lines in LF and others in CR LF, because scripts compare them.
One thing differs: control characters in names are escaped, because a line feed in a client's id would forge rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OK: Final = b"OK\r\n"
"""The reply to ``cancel job``, ``create function``, ``drop function``, ``maxqueue`` and ``shutdown``."""
UNKNOWN_JOB: Final = b"ERR UNKNOWN_JOB\r\n"
"""The reply to ``cancel job`` if no job has the handle."""
FUNCTION_NOT_FOUND: Final = b"ERR function not found\r\n"
"""The reply to ``drop function`` if no client or worker has named the function."""
FUNCTION_IN_USE: Final = b"ERR there are still connected workers or executing clients\r\n"
"""The reply to ``drop function`` if the function has workers or running jobs."""
LIST_END: Final = b".\n"
"""The last line of every list."""

_UNKNOWN_SHOW: Final = b"ERR UNKNOWN_SHOW_ARGUMENTS\r\n"
_UNKNOWN_CANCEL: Final = b"ERR UNKNOWN_ERROR\r\n"

_WITHOUT_ARGUMENTS: Final = frozenset({b"status", b"workers", b"prioritystatus", b"getpid", b"version", b"verbose"})
_SPACES: Final = re.compile(rb" +")
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")
_NUMBER: Final = re.compile(rb"\s*([+-]?\d+)")


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its words in lower case, and its arguments.

    | name | args |
    |---|---|
    | ``status`` ``workers`` ``prioritystatus`` ``getpid`` ``version`` ``verbose`` | none |
    | ``show jobs`` ``show unique jobs`` | none |
    | ``cancel job`` | handle |
    | ``create function`` ``drop function`` | function |
    | ``maxqueue`` | function and up to three limits, unparsed: see ``queue_limits`` |
    | ``shutdown`` | none, or ``graceful`` |
    """

    name: str
    args: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class FunctionStatus:
    """A function's counts: ``total`` jobs that have not ended, running jobs, workers, and queued jobs by priority.

    ``status`` shows the first three, ``prioritystatus`` the queued jobs and the workers.
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
    """A connection in the list of ``workers``, with its functions in the reverse order of their registration.

    An unset client id is ``-``.
    """

    descriptor: int
    address: str
    client_id: bytes = b"-"
    functions: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job in the list of ``show jobs``. ``cancelled``: but not yet dropped; ``background``: and still in the queue."""

    handle: bytes
    attempts: int
    cancelled: bool
    background: bool


def parse(line: bytes) -> Command | bytes:
    """Parse a line without its line end; return a command, or the reply that refuses it.

    Only spaces separate words, and their case does not matter. Words after a command without arguments are ignored.
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
    """Parse the limits of ``maxqueue`` for high, normal and low priority; 0 is no limit.

    A single limit applies to all priorities. Of two limits, the second applies to normal, and low has none. Text that is not a
    number counts as 0.
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
    """Return the refusal of an unknown command, and of ``shutdown`` for clients without the right to it."""
    return b"ERR UNKNOWN_COMMAND Unknown+server+command%b\r\n" % word


def incomplete(word: bytes) -> bytes:
    """Return the refusal of a command with too few or too many arguments."""
    return b"ERR INVALID_ARGUMENTS An+incomplete+set+of+arguments+was+sent+to+this+command+%b\r\n" % word


def escape(name: bytes) -> bytes:
    r"""Escape control characters, such as ``\x0a``; other bytes stay the same."""
    return _CONTROL.sub(lambda found: b"\\x%02x" % found[0][0], name)


def listing(lines: Iterable[bytes]) -> bytes:
    """Join the lines of a list and add its end."""
    return b"".join(lines) + LIST_END


def status_line(status: FunctionStatus) -> bytes:
    """Return a line of ``status``."""
    return b"%b\t%d\t%d\t%d\n" % (escape(status.name), status.total, status.running, status.workers)


def priority_line(status: FunctionStatus) -> bytes:
    """Return a line of ``prioritystatus``."""
    return b"%b\t%d\t%d\t%d\t%d\n" % (escape(status.name), status.high, status.normal, status.low, status.workers)


def worker_line(peer: ConnectedPeer) -> bytes:
    """Return a line of ``workers``."""
    functions = b"".join(b" " + escape(function) for function in peer.functions)
    return b"%d %b %b :%b\n" % (peer.descriptor, peer.address.encode(), escape(peer.client_id), functions)


def job_line(job: JobLine) -> bytes:
    """Return a line of ``show jobs``."""
    return b"%b\t%d\t%d\t%d\n" % (job.handle, job.attempts, job.cancelled, job.background)


def unique_line(unique: bytes) -> bytes:
    """Return a line of ``show unique jobs``; an empty one if the job has no unique."""
    return escape(unique) + b"\n"


def version_reply(version: str) -> bytes:
    """Return the reply to ``version``."""
    return f"OK {version}\n".encode()


def verbose_reply(level: str) -> bytes:
    """Return the reply to ``verbose``: the log level in gearmand's terms, such as ``ERROR``."""
    return f"OK {level}\n".encode()


def pid_reply(pid: int) -> bytes:
    """Return the reply to ``getpid``."""
    return b"OK %d\n" % pid
