"""The clients of live streams, and the stub that replaces the node in front of them; run by `viewers.py`.

    python viewers_client.py read ADDRESS RECORD     read all streams until the end of the standard input, and record them
    python viewers_client.py silent ADDRESS          open the streams, and read none of them
    python viewers_client.py stub RECORD             send recorded streams, on a free port

The first line of the standard input is JSON, a list of the paths, tokens and pages of the streams. ``read`` prints ``ready``
once each stream has its first event, and at the end one line of JSON with the bytes, the frames, the ages of the numbers and the
loads of pages; a stream that is cut is an error. After an event with another version, it loads the page of the stream again, as
the script of the pages does. ``silent`` prints ``ready`` once each stream is answered, and at the end the number of answers by
status. ``stub`` prints its address, and sends each stream what the node sent on the one with the same number, at the same pace,
in an endless loop; it answers each load of a page with the page that the node sent last.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import signal
import socket
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERS = b'event: numbers\ndata: {"at":"'
VERSION = b"event: version\ndata: "
STREAM = b"X-Stream: "
CHANGES = 60.0
"""Seconds from one change of the overview's facts to the next, at steady load."""
REST = 2.0
"""Seconds after a load before the next one."""
MOST_LATE = 20
"""Loads that may be under way at the end."""
SMALL_BUFFER = 4096
"""Bytes that the system keeps for a client that reads nothing."""


class Pages:
    """The pages that are loaded again."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._loads: set[asyncio.Task[None]] = set()
        self.number = 0
        self.seconds: list[float] = []
        self.newest = b""
        """The last answer."""

    def load(self, path: str, token: str, done: Callable[[], object]) -> None:
        """Load a page, and call ``done``."""
        task = asyncio.create_task(self._load(path, token))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)
        task.add_done_callback(lambda _: done())

    async def _load(self, path: str, token: str) -> None:
        began = time.time()
        host, _, port = self._address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"GET {path} HTTP/1.1\r\nHost: {self._address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        answer = await reader.read(-1)
        writer.close()
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"{path}: {answer[:200]!r}")
        self.number += 1
        self.seconds.append(time.time() - began)
        self.newest = answer

    def check(self) -> None:
        """Raise SystemExit if a load is late."""
        if len(self._loads) > MOST_LATE:
            raise SystemExit(f"{len(self._loads)} pages are not loaded")


class Reader(asyncio.Protocol):
    """One stream: its bytes, the ages of the numbers in it, and the loads of its page."""

    def __init__(self, request: bytes, pages: Pages, page: str, token: str) -> None:
        self._request = request
        self._pages = pages
        self._page = page
        self._token = token
        self._loaded = ""
        self._version = ""
        self._is_loading = False
        self._rested = 0.0
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_cut = False
        self.received: list[tuple[float, bytes]] = []
        self.ages: list[float] = []
        """Seconds from a sample to its arrival."""
        self.shown: list[float] = []
        """Seconds from a sample to the arrival of the next one: how old it becomes before the viewer sees another."""
        self._at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.time()
        self.received.append((now, data))
        if not self.begun.done():
            if not data.startswith(b"HTTP/1.1 200") and len(self.received) == 1:
                self.begun.set_exception(SystemExit(f"{self._request!r}: {data[:500]!r}"))
            elif b"\ndata: " in data:
                self.begun.set_result(None)
        place = data.rfind(NUMBERS)
        if place >= 0:
            start = place + len(NUMBERS)
            sampled_at = datetime.fromisoformat(data[start : data.index(b'"', start)].decode()).timestamp()
            self.ages.append(now - sampled_at)
            self.end(now)
            self._at = sampled_at
        place = data.rfind(VERSION)
        if place >= 0 and self._page:
            start = place + len(VERSION)
            event = json.loads(data[start : data.index(b"\n", start)])
            # A turn is shorter than the time from one change to the next: it begins at any moment between two of them.
            spread = event["spread"] if self._version else max(event["spread"], CHANGES)
            self._become(event["version"], spread)

    def _become(self, version: str, spread: float) -> None:
        """Load the page for a new version, some time within the spread."""
        self._version = version
        if version != self._loaded and not self._is_loading:
            self._is_loading = True
            loop = asyncio.get_running_loop()
            loop.call_later(max(self._rested - loop.time(), spread * random.random()), self._load)

    def _load(self) -> None:
        version = self._version

        def done() -> None:
            self._is_loading = False
            self._rested = asyncio.get_running_loop().time() + REST
            self._loaded = version
            self._become(self._version, REST)

        self._pages.load(self._page, self._token, done)

    def end(self, now: float) -> None:
        """Note the age of the sample that is shown until now."""
        if self._at:
            self.shown.append(now - self._at)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_cut = True
        if not self.begun.done():
            self.begun.set_exception(SystemExit(f"{self._request!r}: {exc}"))


def request(address: str, number: int, path: str, token: str) -> bytes:
    """Return the request for a stream."""
    return f"GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n".encode() + b"%s%d\r\n\r\n" % (
        STREAM,
        number,
    )


async def read(address: str, record: Path) -> None:
    """Read all streams in this process."""
    loop = asyncio.get_running_loop()
    streams = json.loads(await loop.run_in_executor(None, sys.stdin.readline))
    host, _, port = address.rpartition(":")
    readers: list[Reader] = []
    pages = Pages(address)
    for number, (path, token, page) in enumerate(streams):
        reader = Reader(request(address, number, path, token), pages, page, token)
        await loop.create_connection(lambda one=reader: one, host, int(port))
        readers.append(reader)
    await asyncio.gather(*(reader.begun for reader in readers))
    for reader in readers:
        reader.received.clear()
        reader.ages.clear()
    began = time.time()
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    now = time.time()
    if cut := sum(reader.is_cut for reader in readers):
        raise SystemExit(f"{cut} of {len(readers)} streams were cut")
    pages.check()
    for reader in readers:
        reader.end(now)
    pieces = [[(at - began, base64.b64encode(data).decode()) for at, data in reader.received] for reader in readers]
    page = base64.b64encode(pages.newest).decode()
    recorded = {"seconds": now - began, "streams": pieces, "page": page}
    await asyncio.to_thread(record.write_text, json.dumps(recorded))
    found = {
        "seconds": now - began,
        "streams": len(readers),
        "pieces": sum(len(reader.received) for reader in readers),
        "bytes": sum(len(data) for reader in readers for _, data in reader.received),
        "ages": sorted(age for reader in readers for age in reader.ages),
        "shown": sorted(age for reader in readers for age in reader.shown),
        "loads": pages.number,
        "load_ms": [round(1000 * one, 1) for one in sorted(pages.seconds)],
        "cpu_s": time.process_time(),
    }
    print(json.dumps(found))


def silent(address: str) -> None:
    """Open streams on sockets with small buffers, and read nothing: also the status is only looked at."""
    streams = json.loads(sys.stdin.readline())
    host, _, port = address.rpartition(":")
    sockets = []
    for number, (path, token, _) in enumerate(streams):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        one.settimeout(20)
        one.connect((host, int(port)))
        one.sendall(request(address, number, path, token))
        sockets.append(one)
    statuses = Counter(one.recv(12, socket.MSG_PEEK)[9:].decode() for one in sockets)
    print("ready", flush=True)
    sys.stdin.read()
    print(json.dumps(statuses))


class Stub:
    """Sends recorded streams to as many clients."""

    def __init__(self, record: Path) -> None:
        recorded = json.loads(record.read_text())
        self._seconds = recorded["seconds"]
        self._page = base64.b64decode(recorded["page"])
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._number = len(recorded["streams"])
        self._pieces = sorted(
            (at, number, base64.b64decode(data))
            for number, pieces in enumerate(recorded["streams"])
            for at, data in pieces
        )

    async def run(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        print(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
        await server.serve_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if STREAM not in head:
            writer.write(self._page or b"HTTP/1.1 200 OK\r\n\r\n")
            writer.close()
            return
        number = int(head[head.index(STREAM) + len(STREAM) :].split(b"\r")[0])
        self._writers[number] = writer
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nevent: begin\ndata: 0\n\n")
        if len(self._writers) == self._number:
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            for at, number, data in self._pieces:
                if (rest := began + at - loop.time()) > 0.001:
                    await asyncio.sleep(rest)
                self._writers[number].write(data)
            began += self._seconds
            await asyncio.sleep(max(began - loop.time(), 0))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    mode, *arguments = sys.argv[1:]
    if mode == "read":
        asyncio.run(read(arguments[0], Path(arguments[1])))
    elif mode == "silent":
        silent(*arguments)
    else:
        asyncio.run(Stub(Path(arguments[0])).run())
