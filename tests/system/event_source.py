"""A plain client of server-sent events, as browsers are: it connects again, with the id of the last event."""

from __future__ import annotations

import http.client
import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIMEOUT = 30.0
PAUSE = 0.05
"""Seconds between two attempts to connect; the stream suggests more, so that the clients of a node spread."""


class Event(NamedTuple):
    """One event."""

    kind: str
    data: dict[str, Any]
    id: str = ""


class EventSource:
    """Reads one stream at the first of some addresses that answers. A context manager.

    ``addresses`` may be changed meanwhile: a client knows its nodes by a load balancer.
    """

    def __init__(self, addresses: Sequence[str], path: str, headers: Mapping[str, str]) -> None:
        self.addresses = addresses
        self.connections = 0
        """How often it has connected."""
        self._path = path
        self._headers = headers
        self._last = ""
        self._buffer = b""
        self._connection: http.client.HTTPConnection | None = None
        self._response: http.client.HTTPResponse | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def begin(self) -> Self:
        """Wait until the node has begun the stream."""
        self._connected()
        return self

    def next(self) -> Event | None:
        """Return the next event; None once the server has ended the stream. A stream that is cut goes on elsewhere.

        Raises AssertionError if there is no event in time.
        """
        deadline = time.monotonic() + TIMEOUT
        while True:
            assert time.monotonic() < deadline, "no event"
            block = self._block()
            if block is None:
                return None
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            self._last = fields.get("id", self._last)
            if "data" in fields:
                return Event(fields.get("event", "message"), json.loads(fields["data"]), fields.get("id", ""))

    def rest(self) -> list[Event]:
        """Return all events up to the end of the stream."""
        return list(iter(self.next, None))

    def _block(self) -> str | None:
        while b"\n\n" not in self._buffer:
            try:
                data = self._connected().read1(65536)
            except TimeoutError as silent:
                raise AssertionError("the stream is silent") from silent
            except (OSError, http.client.HTTPException):  # such as an incomplete chunk, if the node was killed
                self._leave()
            else:
                if not data:
                    return None
                self._buffer += data
        block, _, self._buffer = self._buffer.partition(b"\n\n")
        return block.decode()

    def _connected(self) -> http.client.HTTPResponse:
        deadline = time.monotonic() + TIMEOUT
        while self._response is None:
            for address in self.addresses:
                try:
                    self._response = self._open(address)
                    break
                except OSError:
                    self._leave()
            else:
                assert time.monotonic() < deadline, f"none of {self.addresses} answers"
                time.sleep(PAUSE)
        return self._response

    def _open(self, address: str) -> http.client.HTTPResponse:
        self._connection = http.client.HTTPConnection(address, timeout=TIMEOUT)
        resumed = {"Last-Event-ID": self._last} if self._last else {}
        self._connection.request("GET", self._path, headers={**self._headers, **resumed})
        response = self._connection.getresponse()
        if response.status == http.HTTPStatus.SERVICE_UNAVAILABLE:  # the node has not opened its store yet
            raise ConnectionError
        assert response.status == http.HTTPStatus.OK, (response.status, response.read())
        self.connections += 1
        return response

    def _leave(self) -> None:
        self._buffer = b""
        self._response = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
