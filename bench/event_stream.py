"""The cost of events: jobs per second while a client follows all events, compared with those while nobody wants any."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from generator import LoadError, load
from http_api import Http
from measure import Cell, Run, Scale, Side
from scenarios import WIDE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers import Contestant, Server

STREAM: Final = "/api/v1/namespaces/default/events/stream"
LATE: Final = 60.0
"""Seconds after the load in which the last event has to come."""


def cell(
    key: str, store: str, contestant: Contestant, wrapped: Callable[[Any], Any] = lambda scenario: scenario
) -> Cell:
    """Return the cell for a store; ``wrapped`` adapts the scenario to its server."""
    served = replace(contestant, command=f"{contestant.command} --http 127.0.0.1:0")
    return Cell(
        key=key,
        measure=f"{store}, end to end, 16 workers, window 256, 8 connections, while a client follows all events",
        required="0.6 x nobody who wants any",
        unit="jobs/s",
        sides=(
            Side("a stream of all events", served, wrapped(beside_a_stream)),
            Side("nobody wants any", served, wrapped(alone)),
        ),
        ratio_to=1,
        at_least=0.6,
        rounds=2,
    )


def alone(server: Server, scale: Scale) -> Run:
    """Return the jobs per second without a reader."""
    details = load(server, "e2e", jobs=scale.count(150_000, 5_000), workers=16, unique="random", **WIDE)
    return Run(details["rate"], details)


def beside_a_stream(server: Server, scale: Scale) -> Run:
    """Return the jobs per second with a reader, who has to get each event."""
    jobs = scale.count(150_000, 5_000)
    with _reader(server) as reader:
        details = load(server, "e2e", jobs=jobs, workers=16, unique="random", **WIDE)
        late = reader.wait(jobs)
    return Run(details["rate"], {**details, "late_seconds": late})


@dataclass
class _Reader:
    number: int = 0
    """How many events have come."""

    def read(self, response: http.client.HTTPResponse) -> None:
        tail = b""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # http.client raises these after a close
            while data := response.read1(1 << 16):
                data = tail + data
                self.number += data.count(b"event: event\n")
                tail = data[-12:] if not data.endswith(b"\n") else b""

    def wait(self, number: int) -> float:
        began = time.monotonic()
        while self.number < number:
            if time.monotonic() - began > LATE:
                raise LoadError(f"of {number} events, {self.number} have come")
            time.sleep(0.01)
        return time.monotonic() - began


@contextlib.contextmanager
def _reader(server: Server) -> Iterator[_Reader]:
    api = Http(server)
    connection = http.client.HTTPConnection(api.address, timeout=LATE)
    connection.request("GET", STREAM, headers={"Authorization": f"Bearer {api.token}"})
    response = connection.getresponse()
    if response.status != http.HTTPStatus.OK:
        raise LoadError(f"the stream is refused: {response.read()!r}")
    reader = _Reader()
    thread = threading.Thread(target=reader.read, args=(response,), daemon=True)
    thread.start()
    try:
        yield reader
    finally:
        connection.close()
