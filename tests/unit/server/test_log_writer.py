from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import termios
import threading
from typing import TYPE_CHECKING

import pytest

from mainspring.server.log_writer import LogWriter, UnblockedStream, outlet_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DEADLINE = 30.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe with a place for one page."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    yield reader, writer
    for descriptor in (reader, writer):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def numbered(first: int, last: int) -> list[bytes]:
    return [
        b"line %07d, with some more text, so that few of them fill a pipe\n" % number for number in range(first, last)
    ]


def _ends(read: Callable[[int], bytes], mark: bytes) -> bytes:
    """Read until a mark has come."""
    found = b""
    while mark not in found:
        found += read(65536)
    return found


def _reader_of(descriptor: int) -> Callable[[int], bytes]:
    return lambda size: os.read(descriptor, size)


def test_a_full_pipe_keeps_lines_and_then_counts_those_that_it_drops(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writer = LogWriter(outlet_of(descriptor), limit=100_000)
    for line in numbered(0, 20_000):
        writer.write(line)  # nobody reads
    assert writer.dropped > 15_000
    assert os.get_blocking(descriptor)  # others who have this pipe are not affected
    found = _ends(_reader_of(reader), b"were dropped\n")
    kept = found.splitlines(keepends=True)
    assert kept == [
        *numbered(0, 20_000 - writer.dropped),
        b"mainspring: %d lines of this log were dropped\n" % writer.dropped,
    ]
    writer.write(b"and on\n")
    assert _ends(_reader_of(reader), b"and on\n") == b"and on\n"
    writer.finish(DEADLINE)


def test_a_slow_reader_gets_every_line_in_order(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writer = LogWriter(outlet_of(descriptor))
    lines = numbered(0, 10_000)
    found: list[bytes] = []
    reading = threading.Thread(target=lambda: found.append(_ends(_reader_of(reader), lines[-1])), daemon=True)
    reading.start()
    for line in lines:
        writer.write(line)
    reading.join(DEADLINE)
    assert found == [b"".join(lines)]
    assert not writer.dropped


def test_a_stopped_terminal_gets_its_lines_when_it_goes_on() -> None:
    terminal, descriptor = os.openpty()
    try:
        termios.tcflow(descriptor, termios.TCOOFF)  # as Ctrl-S does
        writer = LogWriter(outlet_of(descriptor))
        writer.write(b"first\n")
        writer.write(b"second\n")
        termios.tcflow(descriptor, termios.TCOON)
        assert _ends(_reader_of(terminal), b"second").replace(b"\r", b"").startswith(b"first\nsecond")
        assert os.get_blocking(descriptor)
    finally:
        os.close(terminal)
        os.close(descriptor)


def test_a_full_socket_does_not_block_and_its_flags_stay() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.setdefaulttimeout(5.0)  # of user code: it must not reach the socket either
        try:
            writer = LogWriter(outlet_of(theirs.fileno()), limit=10_000)
        finally:
            socket.setdefaulttimeout(None)
        lines = numbered(0, 20_000)
        for line in lines:
            writer.write(line)
        assert writer.dropped
        assert os.get_blocking(theirs.fileno())
        assert _ends(ours.recv, b"were dropped\n").startswith(lines[0])


def test_an_outlet_that_blocks_is_left_to_a_thread() -> None:
    class Hung:
        blocks = True

        def __init__(self) -> None:
            self.goes_on = threading.Event()
            self.taken: list[bytes] = []

        def write(self, data: bytes) -> int:
            self.goes_on.wait(DEADLINE)
            self.taken.append(data)
            return len(data)

        def wait(self) -> None:
            raise AssertionError

        def close(self) -> None:
            pass

    outlet = Hung()
    writer = LogWriter(outlet, limit=100)
    for line in numbered(0, 3):
        writer.write(line)
    outlet.goes_on.set()
    writer.finish(DEADLINE)
    assert outlet.taken == [*numbered(0, 1), b"mainspring: 2 lines of this log were dropped\n"]


def test_lines_for_a_full_disk_are_written_later(tmp_path: Path) -> None:
    full, disk = os.open("/dev/full", os.O_WRONLY), tmp_path / "log"
    writer = LogWriter(outlet_of(full))
    writer.write(b"first\n")
    writer.write(b"second\n")
    writer.replace(outlet_of(os.open(disk, os.O_WRONLY | os.O_CREAT), owned=True))
    writer.finish(DEADLINE)
    assert disk.read_bytes() == b"first\nsecond\n"
    assert not writer.dropped
    os.close(full)


def test_lines_without_a_reader_are_dropped(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writer = LogWriter(outlet_of(descriptor))
    os.close(reader)
    writer.write(b"one\ntwo\n")
    writer.finish(DEADLINE)
    assert writer.dropped == 2


def test_a_fork_does_not_repeat_the_lines_of_its_parent(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writer = LogWriter(outlet_of(descriptor))
    lines = numbered(0, 200)
    for line in lines:
        writer.write(line)
    if not (child := os.fork()):
        writer.finish(DEADLINE)
        writer.write(b"of the fork\n")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    writer.write(b"last\n")
    found = _ends(_reader_of(reader), b"last\n")
    assert found.count(lines[-1]) == 1
    assert found.count(b"last\n") == 1


def test_a_stream_has_what_users_of_standard_error_need(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    stream = UnblockedStream(descriptor)
    print("a surrogate \udc80", file=stream)
    stream.buffer.write(b"bytes\n")
    stream.flush()
    assert (stream.fileno(), stream.isatty(), stream.encoding, stream.mode) == (descriptor, False, "utf-8", "w")
    assert os.read(reader, 100) == b"a surrogate \\udc80\nbytes\n"
    stream.writer.write(b"x" * 10_000)  # longer than the pipe
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    stream.follow()
    stream.writer.finish(DEADLINE)
    assert not stream.writer.dropped
    assert sys.stderr is not stream
