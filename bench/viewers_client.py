"""The clients of live streams, and the stub that replaces the node in front of them; run by `viewers.py`.

    python viewers_client.py read ADDRESS RECORD     read all streams until the end of the standard input, and record them
    python viewers_client.py silent ADDRESS          open the streams, and read none of them
    python viewers_client.py stub RECORD             send recorded streams, on a free port

The first line of the standard input is JSON, a list of the paths and tokens of the streams. ``read`` prints ``ready`` once each
stream has its first event, and at the end one line of JSON with the bytes, the frames and the ages of the numbers; a stream that
is cut is an error. ``silent`` prints ``ready`` once each stream is answered, and at the end the number of the answers by status.
``stub`` prints its address, and sends each stream what the node sent on the one with the same number, at the same pace, in an
endless loop.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import socket
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

NUMBERS = b'event: numbers\ndata: {"at":"'
STREAM = b"X-Stream: "
SMALL_BUFFER = 4096
"""Bytes that the system keeps for a client that reads nothing."""


class Reader(asyncio.Protocol):
    """One stream: its bytes, and the ages of the numbers in it."""

    def __init__(self, request: bytes) -> None:
        self._request = request
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
    for number, (path, token) in enumerate(streams):
        reader = Reader(request(address, number, path, token))
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
    for reader in readers:
        reader.end(now)
    pieces = [[(at - began, base64.b64encode(data).decode()) for at, data in reader.received] for reader in readers]
    await asyncio.to_thread(record.write_text, json.dumps({"seconds": now - began, "streams": pieces}))
    found = {
        "seconds": now - began,
        "streams": len(readers),
        "pieces": sum(len(reader.received) for reader in readers),
        "bytes": sum(len(data) for reader in readers for _, data in reader.received),
        "ages": sorted(age for reader in readers for age in reader.ages),
        "shown": sorted(age for reader in readers for age in reader.shown),
        "cpu_s": time.process_time(),
    }
    print(json.dumps(found))


def silent(address: str) -> None:
    """Open streams on sockets with small buffers, and read nothing: also the status is only looked at."""
    streams = json.loads(sys.stdin.readline())
    host, _, port = address.rpartition(":")
    sockets = []
    for number, (path, token) in enumerate(streams):
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
