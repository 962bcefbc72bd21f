"""Values on their way from a worker."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
import structlog.testing

from mainspring.errors import PayloadError, UsageError
from mainspring.worker import reports
from mainspring.worker.current import CurrentJob
from mainspring.worker.delivery import Origin
from mainspring.worker.reports import PACKET_BYTES, PublishedValues, Reports

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from mainspring.worker.link import Link
    from mainspring.worker.places import Waits

KEY = (b"H:n:1", b"t")


class Session:
    takes_logs = True

    def __init__(self) -> None:
        self.takes_values = True
        self.running = {KEY, (b"H:n:2", b"t")}
        self.sent: list[list[Any]] = []
        self.arrived = asyncio.Event()

    def send_values(self, values: bytes) -> None:
        self.sent.append(msgspec.msgpack.decode(values))
        self.arrived.set()


class OneLink:
    def __init__(self) -> None:
        self.session = Session()

    def flush(self) -> None: ...


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 10))


def attached() -> tuple[PublishedValues, Session, Origin]:
    values, link = PublishedValues(), OneLink()
    values.attach()
    return values, link.session, Origin(cast("Link", link), KEY)


def test_the_last_value_of_each_name_is_sent() -> None:
    async def test() -> None:
        values, session, origin = attached()
        values.add(origin, "a", b"1")
        values.add(origin, "b", b"1")
        values.add(origin, "a", b"2")
        other = Origin(origin.link, (b"H:n:2", b"t"))
        values.add(other, "a", b"3")
        assert session.sent == []
        await session.arrived.wait()
        assert session.sent == [[[*KEY, [["a", b"2"], ["b", b"1"]]], [b"H:n:2", b"t", [["a", b"3"]]]]]
        values.send()
        assert len(session.sent) == 1, "nothing is left"

    run(test())


def test_a_packet_has_a_bounded_size() -> None:
    async def test() -> None:
        values, session, origin = attached()
        keys = [(b"H:n:%d" % number, b"t") for number in range(5)]
        session.running = {*keys}
        large = b"1" * (PACKET_BYTES * 2 // 5)
        for key in keys:
            values.add(Origin(origin.link, key), "a", large)
        values.send()
        assert [len(packet) for packet in session.sent] == [2, 2, 1]
        assert [one[0] for packet in session.sent for one in packet] == [handle for handle, _ in keys]

    run(test())


def test_values_of_any_thread_are_sent() -> None:
    async def test() -> None:
        values, session, origin = attached()
        threads = [threading.Thread(target=values.add, args=(origin, f"n{n}", b"1")) for n in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        await session.arrived.wait()
        assert sorted(name for name, _ in session.sent[0][0][2]) == [f"n{n}" for n in range(5)]

    run(test())


def test_values_are_sent_before_settlements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "VALUE_INTERVAL", 3600.0)

    async def test() -> None:
        reporter, link = Reports(cast("Waits", None)), OneLink()
        reporter.attach()
        job = CurrentJob(KEY[0], b"", "f", b"", reporter, Origin(cast("Link", link), KEY))
        job.publish("a", {"n": 1})
        job.publish("none", None)
        reporter.send()
        assert link.session.sent == [[[*KEY, [["a", b'{"n":1}'], ["none", b"null"]]]]]

    run(test())


def test_a_delivery_that_has_ended_sends_nothing() -> None:
    async def test() -> None:
        values, session, origin = attached()
        session.running.clear()
        values.add(origin, "a", b"1")
        values.send()
        assert session.sent == []

    run(test())


def test_a_server_that_keeps_none_costs_a_line_in_the_log() -> None:
    async def test() -> None:
        values, session, origin = attached()
        session.takes_values = False
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                values.add(origin, "a", b"1")
                values.send()
        assert [(line["log_level"], line["handle"]) for line in logs] == [("warning", "H:n:1")]
        assert session.sent == []

    run(test())


def test_mistakes_are_refused_where_they_are_made() -> None:
    job = CurrentJob(KEY[0], b"", "f", b"", Reports(cast("Waits", None)))
    with pytest.raises(PayloadError, match="the value 'a'"):
        job.publish("a", float("nan"))
    with pytest.raises(UsageError, match="no name"):
        job.publish("", 1)
    with pytest.raises(UsageError, match="publish a summary"):
        job.publish("a", "x" * 70_000)
    for number in range(100):
        job.publish(f"n{number}", number)
    with pytest.raises(UsageError, match="at most 100 are kept"):
        job.publish("n100", 1)
